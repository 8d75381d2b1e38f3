"""Sessions as Python objects: send messages, stream replies, read and change sessions (C1-C8).

There is an async and a sync version; tools/unasync.py generates the sync one.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from pydantic import BaseModel, ValidationError

from cfs.contract.errors import (
    Conflict,
    EngineError,
    InvalidParameters,
    InvalidReply,
    InvalidRequest,
    NotFound,
    TooManyRounds,
)
from cfs.contract.ids import check_id
from cfs.contract.options import SessionOptions, TurnOptions
from cfs.contract.random_names import unique_name
from cfs.contract.tool_calls import ToolRequest
from cfs.contract.transcript import parse, render_one
from cfs.contract.wire import (
    ForeignChanges,
    MergedFiles,
    Message,
    NewMessage,
    Question,
    RedoRequest,
    RewindRequest,
    Rewound,
    SessionVersion,
    Settings,
    SettingsPatch,
    TurnSettings,
)
from cfs.session.formats import TRIES, ReplyFormat
from cfs.session.response import Response, respond
from cfs.session.tools import MAX_ROUNDS, Tool, Toolbox
from cfs.state.replies import MessageOutcome
from cfs.transports.base import DEFAULT_MOUNT, AsyncTransport, resolve
from cfs.transports.deadlines import Deadline

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")
Keys = Iterator[str | None]

TIMEOUT = 900.0
"""Default timeout of a reply in seconds; the server's limit for a turn is ten minutes."""


class AsyncChatIterator(AsyncIterator[str]):
    """Iterates over the pieces of a reply as it is generated; `text` is the text so far."""

    def __init__(self, pieces: AsyncGenerator[str]) -> None:
        self.text = ""
        self._pieces = pieces

    async def __anext__(self) -> str:
        piece = await anext(self._pieces)
        self.text += piece
        return piece

    async def aclose(self) -> None:
        """Stop reading. The turn continues, and its reply will be in the history."""
        await self._pieces.aclose()


class AsyncSession:
    """One session, by its name: over HTTP, or as a file of a mount.

    Without a `path` it gets a new name, such as `calm-otter-7k3mq9xt2vb`. It is accessed at `url` or through the
    directory `mount`; the default is `CFS_URL` if set, and `/cfs` otherwise. `token` defaults to `CFS_TOKEN`. A call
    that takes longer than `timeout` seconds (None: no limit) raises `Timeout`, and the turn continues.

    The object caches nothing: each call reads the current state (C2). A session that does not exist is created on first
    use, as `open` does with `O_CREAT`: by entering the context manager, or else by the first call. Leaving the context
    manager closes the connections and keeps the session, unless `delete` is true. Errors are those of `cfs.errors`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        mount: str | os.PathLike[str] = DEFAULT_MOUNT,
        *,
        url: str | None = None,
        token: str | None = None,
        timeout: float | None = TIMEOUT,
        delete: bool = False,
    ) -> None:
        endpoint = resolve(url, mount)
        self._id = check_id(_name(path, endpoint.location))
        self._timeout = timeout
        self._delete = delete
        self._exists = False
        self._place: dict[str, Any]
        self._transport: AsyncTransport
        if endpoint.kind == "http":
            from cfs.transports.async_http import AsyncHttpTransport  # importing httpx is slow

            self._place = {"url": endpoint.location, "token": token}
            self._transport = AsyncHttpTransport(self._id, endpoint.location, token)
        else:
            from cfs.transports.async_file import AsyncFileTransport

            self._place = {"mount": endpoint.location}
            self._transport = AsyncFileTransport(self._id, endpoint.location)

    @classmethod
    async def from_file(
        cls,
        path: str | os.PathLike[str],
        mount: str | os.PathLike[str] = DEFAULT_MOUNT,
        *,
        url: str | None = None,
        token: str | None = None,
        timeout: float | None = TIMEOUT,
        delete: bool = False,
    ) -> Self:
        """Open an existing session; raises `NotFound` if there is none.

        As a file: `stat`. Over HTTP: `GET /v1/sessions/{id}/settings`.
        """
        session = cls(path, mount, url=url, token=token, timeout=timeout, delete=delete)
        try:
            await session._transport.require()
            session._exists = True
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def id(self) -> str:
        """Name of the session."""
        return self._id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r}, {next(iter(self._place))}={next(iter(self._place.values()))!r})"

    @overload
    async def send(
        self,
        message: str,
        *,
        response_format: None = None,
        tools: Iterable[Tool] = (),
        auto_tool: bool = True,
        max_rounds: int = MAX_ROUNDS,
        settings: TurnOptions | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> Response: ...

    @overload
    async def send(
        self,
        message: str,
        *,
        response_format: type[Model],
        tools: Iterable[Tool] = (),
        auto_tool: bool = True,
        max_rounds: int = MAX_ROUNDS,
        settings: TurnOptions | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> Response[Model]: ...

    async def send(
        self,
        message: str,
        *,
        response_format: type[Model] | None = None,
        tools: Iterable[Tool] = (),
        auto_tool: bool = True,
        max_rounds: int = MAX_ROUNDS,
        settings: TurnOptions | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> Response | Response[Model]:
        """Write a message and return the reply, once it is complete (C3).

        `settings` are for this message only (over HTTP). `response_format` is a pydantic model that the reply must
        match; over HTTP it is enforced by grammar. A reply that does not match is requested again, three times in
        total; then `InvalidReply` has the last one (C7). `tools` are functions that the model may call: calls are run
        and their results returned to the model until it makes no more calls (C8). Without `auto_tool` the caller
        handles them; after `max_rounds` rounds `TooManyRounds` is raised. A failed turn does not raise:
        `Response.error` has the reason. `timeout` applies to the whole call.

        A message whose answer was lost is sent again and stored once. To repeat the call yourself, also in another
        process, give it an `idempotency_key` of its own (over HTTP).

        As a file: append, then read until the reply is there. Over HTTP:
        `POST /v1/sessions/{id}/messages?wait=&transcript=true`; for a slow reply then `GET /v1/sessions/{id}/events`
        and `GET /v1/sessions/{id}`.
        """
        deadline = self._deadline(timeout)
        box = Toolbox(tools)
        turn = _turn_settings(settings)
        keys = _keys(idempotency_key)
        if response_format is None:
            new = self._new(message, turn, box)
            outcome = await self._converse(new, box, auto_tool, max_rounds, deadline, keys)
            return respond(self._id, outcome, None)
        form = ReplyFormat(response_format)
        text = form.ask(message)
        for _ in range(TRIES):
            new = self._new(text, turn, box, form.response_format)
            outcome = await self._converse(new, box, auto_tool, max_rounds, deadline, keys)
            if outcome.error is not None:
                raise EngineError(outcome.error)
            try:
                return respond(self._id, outcome, form.parse(outcome.reply))
            except InvalidReply as problem:
                last = problem
                text = form.complain(problem)
        raise InvalidReply(f"{TRIES} replies in a row are {last.detail}", last_reply=last.last_reply)

    def stream(
        self,
        message: str,
        *,
        tools: Iterable[Tool] = (),
        max_rounds: int = MAX_ROUNDS,
        settings: TurnOptions | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncChatIterator:
        """Write a message and yield its reply as it is generated (C4); raises `EngineError` if the turn fails.

        The message is written when the loop begins. Leaving the loop early does not stop the turn; its reply will be in
        the history. With `tools` calls are run and their results returned to the model, as in `send`. With the same
        `idempotency_key` the message is written once, and each call yields its reply from the beginning.

        As a file: append, then read `.live/{id}`, or where there is none watch the file grow. Over HTTP:
        `POST /v1/sessions/{id}/messages` with `Accept: text/event-stream`.
        """
        box = Toolbox(tools)
        new = self._new(message, _turn_settings(settings), box)
        keys = _keys(idempotency_key)
        return AsyncChatIterator(self._stream(new, box, max_rounds, self._deadline(timeout), keys))

    async def read(self, *, blocking: bool = True, timeout: float | None = None) -> str:
        """Return the transcript once no turn is running or queued (S7); raises `Busy` if not `blocking`.

        As a file: read, with `O_NONBLOCK` if not `blocking`. Over HTTP: `GET /v1/sessions/{id}` with
        `Accept: text/plain`, and `?wait=` if `blocking`.
        """
        if not blocking:
            return await self._use(self._transport.read_now)
        return await self._use(lambda: self._transport.read(self._deadline(timeout)))

    @property
    async def history(self) -> list[str]:
        """The messages of the transcript, each with its role's prefix; waits like `read`.

        As a file: read. Over HTTP: `GET /v1/sessions/{id}` with `Accept: text/plain` and `?wait=`.
        """
        return [render_one(turn) for turn in parse(await self.read())]

    @property
    async def settings(self) -> Settings:
        """The settings of the session (S9).

        As a file: `getxattr user.cfs.*`. Over HTTP: `GET /v1/sessions/{id}/settings`.
        """
        return await self._use(self._transport.settings)

    async def configure(self, **changes: Unpack[SessionOptions]) -> Settings:
        """Change settings and return all of them (S9). None resets a setting to its default.

        Raises `InvalidParameters` for an invalid name or value. As a file: `setxattr user.cfs.NAME`. Over HTTP:
        `PATCH /v1/sessions/{id}/settings`.
        """
        patch = _checked(SettingsPatch, changes)
        return await self._use(lambda: self._transport.configure(patch))

    async def cancel(self, *, queued: bool = False, cascade: bool = False) -> None:
        """Cancel the running turn; over HTTP also `queued` turns, and with `cascade` those of sub-sessions (S12).

        As a file: `setxattr user.cfs.cancel 1`. Over HTTP: `POST /v1/sessions/{id}/cancel`.
        """
        await self._use(lambda: self._transport.cancel(queued=queued, cascade=cascade))

    async def questions(self) -> tuple[Question, ...]:
        """Return the open questions of its agent, such as whether a command may run; oldest first (A5).

        Escape what cannot be seen in their texts before you show them. As a file: not possible. Over HTTP:
        `GET /v1/sessions/{id}/questions`.
        """
        return await self._use(self._transport.questions)

    async def answer(self, answer: str, question: str | None = None) -> None:
        """Answer an open question of its agent: `allow`, `always` or `deny` (A5).

        Without the id of a `question` there must be one only; else raises `Conflict`, as also if another answer came
        first, or `NotFound`. As a file: not possible. Over HTTP: `POST /v1/sessions/{id}/questions/{question}`.
        """
        if question is None:
            questions = await self.questions()
            if not questions:
                raise NotFound(f"no question is open in session {self._id!r}")
            if len(questions) > 1:
                raise Conflict(f"{len(questions)} questions are open in session {self._id!r}: give the id of one")
            question = questions[0].id
        chosen = question
        await self._use(lambda: self._transport.answer(chosen, answer))

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until no turn is running or queued (S13).

        As a file: a read that waits. Over HTTP: `GET /v1/sessions/{id}/wait`.
        """
        await self._use(lambda: self._transport.wait(self._deadline(timeout)))

    async def fork(
        self,
        path: str | None = None,
        *,
        messages: int | None = None,
        at: int | None = None,
        files: bool = True,
        idempotency_key: str | None = None,
    ) -> Self:
        """Copy the history, or its first `messages`, to an independent session and return it (S14).

        With `files` it gets a copy of the files of its workspace, as they were at the last of these messages.

        Without a `path` the copy is named after this session, with `-2` or the next number; raises `AlreadyExists` if
        the name is taken. A copy of the first messages that ends with a user's message answers it. Calls with the same
        `idempotency_key` make one copy. `at` is an older name of `messages`. As a file: read and write a new one,
        without the workspace. Over HTTP: `POST /v1/sessions/{id}/fork`.
        """
        taken = at if messages is None else messages
        copy = await self._use(
            lambda: self._transport.fork(path, taken, self._deadline(None), idempotency_key, files=files)
        )
        return type(self)(copy, **self._place, timeout=self._timeout)

    async def versions(self, *, before: int | None = None, limit: int = 100) -> tuple[SessionVersion, ...]:
        """Return the newest versions of the session, or those before a version, oldest first.

        Each message, edit and rewind is a version. As a file: not possible. Over HTTP:
        `GET /v1/sessions/{id}/versions`.
        """
        return await self._use(lambda: self._transport.versions(before, limit))

    async def at(self, version: int | str) -> tuple[Message, ...]:
        """Return the messages that the session had at a version, or at a time (ISO 8601, UTC without a zone).

        Raises `NotFound` if there is no such version. As a file: not possible. Over HTTP:
        `GET /v1/sessions/{id}?at=`.
        """
        return await self._use(lambda: self._transport.read_at(version))

    async def rewind(
        self,
        to: int | str,
        *,
        messages: bool = True,
        files: bool = True,
        others: ForeignChanges = "refuse",
        sub_sessions: bool = False,
        dry_run: bool = False,
    ) -> Rewound:
        """Take the session back to a version or a time, and with it what its agent has changed in the workspace.

        Only `messages` or only `files` if the other is false. With `sub_sessions` those below it go back to the same
        time. Running and waiting turns are cancelled. Nothing is lost: `redo` undoes it. Returns what it does, or with
        `dry_run` what it would do. Raises `Conflict` if somebody else has changed such a file since, unless `others` is
        `theirs` (their file stays) or `ours` (it goes back as well).

        As a file: not possible. Over HTTP: `POST /v1/sessions/{id}/rewind`.
        """
        how = RewindRequest(
            to=to, messages=messages, files=files, others=others, sub_sessions=sub_sessions, dry_run=dry_run
        )
        return await self._use(lambda: self._transport.rewind(how))

    async def redo(self, *, others: ForeignChanges = "refuse", dry_run: bool = False) -> Rewound:
        """Undo the last rewind, in all sessions that it changed, and of files.

        Raises `Conflict` if there is none, or if something was said since; also for files as `rewind` does. As a file:
        not possible. Over HTTP: `POST /v1/sessions/{id}/redo`.
        """
        return await self._use(lambda: self._transport.redo(RedoRequest(others=others, dry_run=dry_run)))

    async def merge(self, source: str, *, dry_run: bool = False) -> MergedFiles:
        """Merge the files of a copy of the session into its own, or those of the original into the copy's.

        A text that both have changed is merged by lines. If that is not possible, it stays as it is, and `conflicts` of
        the result list it with the files beside it that have both contents. With `dry_run` nothing is changed. Raises
        `NotFound` if neither is a copy of the other.

        As a file: not possible. Over HTTP: `POST /v1/versions/workspaces/{id}`.
        """
        return await self._use(lambda: self._transport.merge(source, dry_run=dry_run))

    async def delete(self) -> None:
        """Delete the session with its turns and sub-sessions (S2); raises `NotFound` if there is none.

        As a file: unlink. Over HTTP: `DELETE /v1/sessions/{id}`.
        """
        await self._transport.delete()
        self._exists = True  # it existed: only `reopen` or a message creates it again

    async def reopen(self) -> None:
        """Use the session that has the name now; create it if there is none.

        After a session was deleted or lost, calls raise `Gone`, so that nothing is added to another conversation by
        mistake. Call this, or create a new object, to continue.

        As a file: open it for appending. Over HTTP: `POST /v1/sessions`.
        """
        await self._transport.reopen()

    async def close(self) -> None:
        """Close the connections; the session stays unchanged, and its turns continue.

        As a file: nothing. Over HTTP: the connections are closed.
        """
        await self._transport.close()

    async def __aenter__(self) -> Self:
        try:
            await self._transport.open()
            self._exists = True
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._delete:
                await self.delete()
        except NotFound:
            pass  # another client has deleted it
        finally:
            await self.close()

    async def _use(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call; the first call creates the session if it does not exist."""
        try:
            result = await call()
        except NotFound as error:
            if self._exists or type(error) is not NotFound:  # deleted since then, or hidden
                raise
            await self._transport.open()
            result = await call()
        self._exists = True
        return result

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._timeout if timeout is None else timeout)

    def _new(
        self, text: str, settings: TurnSettings, box: Toolbox, response_format: dict[str, Any] | None = None
    ) -> NewMessage:
        """Build a message with its tools, or with the tools described in its text if the transport takes only text."""
        if not text.strip():
            raise InvalidRequest("the message is empty")
        if not self._transport.takes_tools:
            return _checked(NewMessage, {"content": box.describe(text), "settings": settings})
        extra = {"response_format": response_format, "tools": box.specs()}
        return _checked(NewMessage, {"content": text, "settings": settings, **extra})

    async def _converse(
        self, new: NewMessage, box: Toolbox, auto_tool: bool, max_rounds: int, deadline: Deadline, keys: Keys
    ) -> MessageOutcome:
        """Send a message, and then results of tools until the model makes no more calls."""
        outcome = await self._transport.send(new, deadline, next(keys))
        self._exists = True
        rounds = 0
        while auto_tool and outcome.error is None and (calls := box.calls(outcome)):
            _check_rounds(rounds, max_rounds, outcome)
            rounds += 1
            answer = await self._answer(new, box, calls, deadline, keys)
            outcome = await self._transport.send(answer, deadline, next(keys))
        return outcome

    async def _stream(
        self, new: NewMessage, box: Toolbox, max_rounds: int, deadline: Deadline, keys: Keys
    ) -> AsyncGenerator[str]:
        """Yield the replies to a message and to results of tools until the model makes no more calls."""
        rounds = 0
        message: NewMessage | None = new
        while message is not None:
            calls: list[ToolRequest] = []
            async with aclosing(self._transport.stream(message, deadline, next(keys))) as pieces:
                async for piece in pieces:
                    self._exists = True
                    if isinstance(piece, str):
                        yield piece
                    elif calls := box.calls(piece):
                        _check_rounds(rounds, max_rounds, piece)
            rounds += 1
            message = await self._answer(new, box, calls, deadline, keys) if calls else None

    async def _answer(
        self,
        new: NewMessage,
        box: Toolbox,
        calls: Sequence[ToolRequest],
        deadline: Deadline,
        keys: Keys,
    ) -> NewMessage:
        """Run calls and write all results but the last; the last one is returned, to be sent for the next reply."""
        *earlier, last = await box.async_run(calls)
        for result in earlier:
            message = NewMessage(role="tool", content=result.content, tool_call_id=result.call_id)
            await self._transport.send(message, deadline, next(keys))
        return new.model_copy(
            update={"role": "tool", "content": last.content, "tool_call_id": last.call_id, "generate": True}
        )


def _keys(key: str | None) -> Keys:
    """Yield the idempotency keys of the messages that one call sends: the caller's, then some made from it."""
    return (key if key is None or number == 1 else f"{key}/{number}" for number in count(1))


def _name(path: str | os.PathLike[str] | None, mount: str) -> str:
    """Return the name of a session; it may be given as the path of its file in the mount."""
    if path is None:
        return unique_name()
    name = os.fspath(path)
    return name.removeprefix(mount.rstrip("/") + "/")


def _check_rounds(rounds: int, limit: int, outcome: MessageOutcome) -> None:
    if rounds >= limit:
        raise TooManyRounds(f"the model called tools {limit} times in a row", last_reply=outcome.reply)


def _turn_settings(settings: TurnOptions | None) -> TurnSettings:
    return _checked(TurnSettings, settings or {})


def _checked(model: type[Model], values: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidParameters(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
