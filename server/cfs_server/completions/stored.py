"""Stored responses: each is a turn of a session, and its id says which. There is no other store (S4, H4)."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from cachetools import LRUCache

from cfs.errors import Conflict, Gone, NotFound, NotGranted
from cfs.wire import Message
from cfs_filesystem import Operation
from cfs_server.completions.requests import CompletionSpec, ResponseParent, beginning_of
from cfs_server.completions.run import submit
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.history import is_error_reply
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import CANCELLED, Turn, TurnRequest
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session

_ID = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{32})([0-9a-f]{1,15})")


@dataclass(frozen=True, slots=True)
class ResponseId:
    """Where a response is: the key of its session, its turn, and the number of the last event before it.

    A session keeps its key when it is renamed. The id gives no right: those of the session count.
    """

    session: str
    turn: str
    event: int

    def __str__(self) -> str:
        """Write the id as clients know it."""
        return f"resp_{self.session}{self.turn}{self.event:x}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Read an id. Raises `NotFound` for one that this server did not make."""
        match = _ID.fullmatch(text)
        if match is None:
            raise _missing()
        return cls(match[1], match[2], int(match[3], 16))


def _missing() -> NotFound:
    return NotFound("there is no response with this id: it was not stored, or its session was deleted")


@dataclass(frozen=True, slots=True)
class Stored:
    """A response with its session and its turn, which may still run."""

    id: ResponseId
    session: Session
    turn: Turn

    @property
    def reply_index(self) -> int:
        """The index of the reply in the history, once it has begun."""
        assert self.turn.base is not None  # noqa: S101 - the message is in the history before its reply begins
        return self.turn.base + 1


_BEGINNINGS = 1_024
_SESSIONS_EACH = 8


class UnnamedSessions:
    """The sessions of responses that named none, by the beginnings of their conversations. It holds the newest.

    Such requests send all of their conversation, and the session that they continue is found by it. What is not here
    any more, as after a restart, is found by the ids of the items, or begins another session.
    """

    def __init__(self) -> None:
        self._keys: LRUCache[str, tuple[str, ...]] = LRUCache(_BEGINNINGS)

    def add(self, beginning: str, session: str) -> None:
        """Add a session, by its key."""
        self._keys[beginning] = (session, *self.of(beginning))[:_SESSIONS_EACH]

    def of(self, beginning: str) -> tuple[str, ...]:
        """Return the keys of sessions with a beginning, the newest first."""
        return self._keys.get(beginning, ())


class StoredResponses:
    """The stored responses of one caller."""

    def __init__(self, sessions: AuthorizedSessions, unnamed: UnnamedSessions) -> None:
        self._sessions = sessions
        self._unnamed = unnamed

    async def find(self, text: str, *operations: Operation) -> Stored:
        """Return a response for operations on its session that must all be granted.

        Raises `NotFound`, and `Gone` if the events of its turn are no longer kept.
        """
        name = ResponseId.read(text)
        session = self._session(name, *operations)
        return Stored(name, session, await self._sessions.turn(session, name.turn, name.event))

    async def message(self, key: str, index: int) -> Message | None:
        """Return a message of the session with a key; None if there is none, or if the caller may not read it."""
        try:
            session = self._sessions.with_key(key, "read_binary")
        except (Gone, NotGranted):
            return None
        async with self._sessions.loaded(session):
            return session.history.messages[index] if index < len(session.history) else None

    async def input_of(self, text: str) -> list[tuple[int, Message]]:
        """Return the messages that a response added before its reply, each with its index in the session."""
        name = ResponseId.read(text)
        session = self._session(name, "read_binary")
        living = session.find_turn(name.turn)
        if living is not None and living.base is None:
            view = living.request.view
            return [(len(view.messages) if view else len(session.history), living.message)]
        result: list[tuple[int, Message]] = []
        for event in await self._sessions.events_of(session, name.turn, name.event):
            if event.type != "message.added":
                break
            result.append((event.data["index"], Message.model_validate(event.data["message"])))
        return result

    def _session(self, name: ResponseId, *operations: Operation) -> Session:
        try:
            return self._sessions.with_key(name.session, *operations)
        except (Gone, NotGranted):  # the same answer for both, which does not name the session
            raise _missing() from None

    async def begin(
        self, spec: CompletionSpec, parent: ResponseParent, submitted: Callable[[Stored, LoggedEvent], None]
    ) -> tuple[CompletionSpec, Stored | None]:
        """Begin a response as a turn. One that is not stored is returned with all that the model has to read.

        `submitted` gets the response, in the callback of the event loop that starts its turn. Raises `NotFound`,
        `Conflict`, and as `submit`.
        """
        if parent.previous is not None:
            return await self._after(spec, parent, parent.previous, submitted)
        name = parent.conversation or parent.session
        if name is None:
            return spec, await self._unnamed_response(spec, parent, submitted) if parent.stores else None
        async with self._sessions.loaded(name):
            if parent.conversation is not None:
                session = self._sessions.get(name, "read_binary", "write")
                spec = replace(spec, before=_before(session, spec.messages))
            return spec, self._submit(name, spec, submitted)

    async def _after(
        self,
        spec: CompletionSpec,
        parent: ResponseParent,
        previous: str,
        submitted: Callable[[Stored, LoggedEvent], None],
    ) -> tuple[CompletionSpec, Stored | None]:
        """Continue the session of a response, or a copy of it that ends with the response."""
        stored = await self.find(previous, "read_binary")
        session = stored.session
        if not stored.turn.result.done():
            raise Conflict(f"response {previous!r} is in progress: wait for it, or cancel it")
        async with self._sessions.loaded(session):
            end = _end(stored)
            if not parent.stores:
                return replace(spec, messages=(*session.history.messages[:end], *spec.messages)), None
            is_last = session.idle and end == len(session.history)
            if is_last and parent.session in (None, session.id):
                spec = replace(spec, before=_before(session, spec.messages))
                return spec, self._submit(session.id, spec, submitted)
            if parent.session == session.id:
                raise Conflict(f"session {session.id!r} has gone on since {previous!r}: name another one for a branch")
            copy = self._sessions.fork(session.id, parent.session, end)
            try:
                spec = replace(spec, before=_before(copy, spec.messages))
                return spec, self._submit(copy.id, spec, submitted)
            except BaseException:
                self._sessions.discard(copy)
                raise

    async def _unnamed_response(
        self, spec: CompletionSpec, parent: ResponseParent, submitted: Callable[[Stored, LoggedEvent], None]
    ) -> Stored | None:
        """Continue the session whose conversation a request contains, or begin one. None: the caller may not."""
        beginning = beginning_of(self._sessions.owner, spec.messages)
        before = spec.before.messages if spec.before else ()
        if before:
            for session in self._candidates((*parent.origins, *self._unnamed.of(beginning))):
                async with self._sessions.loaded(session):
                    if self._continues(session, before):
                        return self._submit(session.id, spec, submitted)
        name = self._sessions.new_name()
        if name is None:
            return None
        begun = self._submit(name, spec, submitted)
        self._unnamed.add(beginning, begun.session.key)
        return begun

    def _candidates(self, keys: Sequence[str]) -> Iterator[Session]:
        """Yield the sessions with some keys that the caller may continue."""
        for key in dict.fromkeys(keys):
            with suppress(Gone):
                session = self._sessions.with_key(key)
                rights: tuple[Operation, ...] = ("read_binary", "write")
                if session.settings.driver == "model" and all(
                    self._sessions.may(right, session.id) for right in rights
                ):
                    yield session

    def _continues(self, session: Session, before: Sequence[Message]) -> bool:
        """Return whether a conversation is that of an idle session and goes on.

        A client does not have the reply of a turn that failed or was cancelled, and repeats the turn or leaves it out.
        Then its conversation is the newer one.
        """
        history = session.history.messages
        if not session.idle or not history:
            return False
        common = session.history.common(before)
        if common == len(history):
            return True
        return common >= _answered(history) > 0 and self._sessions.may("delete", session.id)

    def _submit(self, name: str, spec: CompletionSpec, submitted: Callable[[Stored, LoggedEvent], None]) -> Stored:
        existing = self._sessions.known(name)
        before = 0 if existing is None else existing.log.last
        session, turn, event = submit(self._sessions, name, spec)
        stored = Stored(ResponseId(session.key, turn.id, before), session, turn)
        submitted(stored, event)
        return stored

    async def cancel(self, text: str) -> Stored:
        """Cancel a response that is in progress, and wait for its end. One that has ended stays as it is."""
        stored = await self.find(text, "read_binary", "write")
        if stored.session.find_turn(stored.turn.id) is stored.turn:
            stored.session.cancel_turn(stored.turn)
            await asyncio.shield(stored.turn.result)  # the turn does not end with its reader
        return stored

    def add(self, session: Session, messages: tuple[Message, ...]) -> None:
        """Add messages to a session, whose history is loaded, and generate nothing. Raises as `submit`."""
        request = TurnRequest(messages[-1], generate=False, view=_before(session, messages))
        self._sessions.submit(session.id, request)

    async def delete(self, text: str) -> None:
        """Delete a response with its session, in which nothing else may be. Raises `NotFound` and `Conflict`."""
        name = ResponseId.read(text)
        session = self._session(name, "delete")
        session.require_idle("the response cannot be deleted")
        events = await self._sessions.events_of(session, name.turn, name.event)
        places = [event.data["index"] for event in events if event.type == "message.added"]
        if places != list(range(len(session.history))) or self._sessions.children(session):
            raise Conflict("the response is a part of a conversation: delete the conversation, or edit its transcript")
        self._sessions.delete(session.id)


def _answered(history: Sequence[Message]) -> int:
    """Return the length of a history without its last turn, if that failed or was cancelled."""
    end = len(history)
    if not is_error_reply(history[-1]) and not history[-1].content.endswith(CANCELLED):
        return end
    end -= 1
    while end and history[end - 1].role != "assistant":
        end -= 1
    return end


def _before(session: Session, messages: tuple[Message, ...]) -> SizedMessages | None:
    """Return the conversation before the last of these messages. None: it is what the session has by then."""
    if len(messages) == 1:
        return None
    session.require_idle("several items cannot be added now")
    return session.history.extended(messages[:-1])


def _end(stored: Stored) -> int:
    """Return the length of the history that ends with a response. Raises `Conflict` if the history has changed."""
    result, history = stored.turn.result.result(), stored.session.history
    last = history.messages[result.messages - 1] if 0 < result.messages <= len(history) else None
    if last is None or last.role != "assistant" or last.content != result.reply:
        raise Conflict(f"the conversation of response {str(stored.id)!r} has been edited since: begin another one")
    return result.messages
