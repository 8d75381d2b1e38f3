"""Completions that no session records: made for whoever reads them, and ended when nobody does."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from cfs.completions import ModelCard, Recorded, TokenCounts
from cfs.completions.models import MESSAGE_TOKENS, estimate_tokens
from cfs.errors import Conflict, EngineError, TooLarge, TooMany, Unavailable
from cfs.transcript import shown
from cfs.wire import Message, Settings, SettingsPatch
from cfs_server.broadcast import Broadcast
from cfs_server.completions.requests import DEFAULT_TOKENS, CompletionSpec, Conversations
from cfs_server.engine.interface import CountsTokens, Delta, Engine, Finished, GenerationRequest, Kind
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.quotas import Limits
from cfs_server.sessions.session import Session
from cfs_server.sessions.turns import Turn, TurnRequest

# Completions that a session records: a turn like any other, whether anybody reads it or not (S4, H4).


def submit(sessions: AuthorizedSessions, session_id: str, spec: CompletionSpec) -> tuple[Session, Turn]:
    """Give a session the last message to answer, and the others as what the conversation was before it.

    Needs the rights to write and to read; to put another conversation in the history's place also the right to delete.
    Raises `Conflict` where an agent answers, which has tools of its own.
    """
    known = sessions.find(session_id, "write")
    sessions.require("read_binary", session_id)
    settings = known.settings if known else Settings()
    if settings.driver == "agent" and (spec.tools or spec.json_schema):
        raise Conflict(f"session {session_id!r} is answered by an agent, which takes neither tools nor a form")
    request = TurnRequest(
        spec.messages[-1],
        settings=_patch(spec.patch, settings),
        json_schema=spec.json_schema,
        logprobs=spec.logprobs,
        view=spec.before,
        tools=spec.tools,
        tool_choice=spec.tool_choice,
        parallel_calls=spec.parallel_calls,
    )
    session, turn, _ = sessions.submit(session_id, request)
    return session, turn


async def follow(session: Session, turn: Turn, check: Callable[[], None]) -> AsyncIterator[Delta | Finished]:
    """Yield a turn's pieces, those that are there first, then its end. Leaving this ends nothing.

    `check` raises when the reader may not go on reading. Raises what the turn failed with.
    """
    seen = 0
    while True:
        if seen < len(turn.said):
            check()
            seen += 1
            yield turn.said[seen - 1]
        elif turn.result.done():
            break
        else:
            await session.log.broadcast.wait()
            seen = min(seen, len(turn.said))  # what a dead agent had said is taken back (S10)
    result = turn.result.result()
    check()
    if result.failure is not None:
        raise result.failure
    said = turn.text.strip()
    if result.reason != "cancelled" and result.reply.startswith(said) and result.reply != said:
        yield Delta(result.reply[len(said) :], 0)  # an agent may end its turn by a reply that it did not stream
    yield Finished(result.reason, result.usage)


def _patch(patch: SettingsPatch, settings: Settings) -> SettingsPatch:
    """Let a reply be as long as a program expects of one, unless the session was given a length of its own.

    A program that brings the conversation decides itself what leaves it: a prompt that is too long is an error.
    """
    changes: dict[str, Any] = {"overflow": "error"}
    if patch.max_tokens is None and settings.max_tokens == Settings().max_tokens:
        changes["max_tokens"] = DEFAULT_TOKENS
    return patch.model_copy(update=changes)


_DEFAULTS = Settings(max_tokens=DEFAULT_TOKENS)
_KIND: Kind = "agent"
COUNTS_AT_A_TIME = 2
"""Requests of one owner whose tokens are counted side by side."""

Items = AsyncIterator[Delta | Finished]
"""What an engine yields: pieces, then exactly one end."""


class EphemeralCompletions:
    """Makes completions with an engine, as many at a time as are asked for; it counts them until they are over."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._conversations = Conversations(engine.forget)
        self._running: dict[str, str] = {}
        """Why each running completion was ended; empty as long as it was not."""
        self._changed = Broadcast()
        self._draining = False
        self._counting: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """How many completions are being made."""
        return len(self._running)

    def check(self, owner: str) -> None:
        """Raise `Unavailable` when the server ends, and `TooMany` when the engine would not come to them for long."""
        if self._draining:
            raise Unavailable("the server is shutting down", retry_after=5)
        self._limits.check_wait(self._engine.predicted_wait(owner, _KIND))

    @contextlib.contextmanager
    def counting(self, owner: str) -> Iterator[None]:
        """Count tokens for an owner; raises `TooMany` for more at a time than one owner may ask for."""
        if self._counting[owner] >= COUNTS_AT_A_TIME:
            raise TooMany(
                f"tokens are counted for you {COUNTS_AT_A_TIME} requests at a time; try again when one is answered",
                retry_after=1.0,
            )
        self._counting[owner] += 1
        try:
            yield
        finally:
            self._counting[owner] -= 1
            if not self._counting[owner]:
                del self._counting[owner]

    async def make(self, spec: CompletionSpec, owner: str) -> Items:
        """Yield the pieces of a completion, then its end; closing this ends the generation.

        Raises `EngineError`, also when it takes too long.
        """
        request = GenerationRequest(
            uuid.uuid4().hex,
            self._conversations.key(owner, spec.messages),
            spec.messages,
            _DEFAULTS.patched(spec.patch),
            json_schema=spec.json_schema,
            logprobs=spec.logprobs,
            tools=spec.tools,
            tool_choice=spec.tool_choice,
            parallel_calls=spec.parallel_calls,
            owner=owner,
            account=spec.account,
            kind=_KIND,
            deadline_seconds=self._limits.turn_seconds,
        )
        self._running[request.id] = ""
        items = cast("AsyncGenerator[Delta | Finished]", self._engine.generate(request))
        try:
            async with contextlib.aclosing(items):
                async for item in items:
                    if isinstance(item, Finished) and (reason := self._running[request.id]):
                        raise EngineError(reason)
                    yield item
        finally:
            del self._running[request.id]
            self._changed.fire()

    async def drain(self, grace: float) -> None:
        """Take no more orders, let the completions finish for `grace` seconds, and end the others (P3)."""
        self._draining = True
        try:
            async with asyncio.timeout(grace):
                while self._running:
                    await self._changed.wait()
        except TimeoutError:
            for request_id in self._running:
                self._running[request_id] = "the server was shut down"
                self._engine.cancel(request_id)


# Completions as one caller may have them: the only way from a route to the engine (G9).
#
# Whoever may write to some session may have the model answer: it could do so there. A completion that a session records
# needs the rights of that session besides.

_MOST_TEXTS = 10_000


class AuthorizedCompletions:
    """What one caller may do with the engine; what it computes is shared among the caller's own work only."""

    def __init__(
        self,
        model: ModelCard,
        engine: Engine,
        ephemeral: EphemeralCompletions,
        sessions: AuthorizedSessions,
        owner: str,
    ) -> None:
        self.model = model
        self._engine = engine
        self._ephemeral = ephemeral
        self._sessions = sessions
        self._owner = owner

    @property
    def limits(self) -> Limits:
        """What a conversation may take."""
        return self._sessions.limits

    def begin(self, spec: CompletionSpec, session_id: str | None) -> tuple[Items, Recorded | None]:
        """Begin a completion, in a session if one is named; returns its pieces, and where it is kept."""
        if session_id is None:
            self._sessions.require_somewhere("write")
            self._ephemeral.check(self._owner)
            return self._ephemeral.make(spec, self._owner), None
        session, turn = submit(self._sessions, session_id, spec)
        items = follow(session, turn, lambda: self._sessions.require_still(session, session_id, "read_binary"))
        return items, Recorded(session=session.id, turn=turn.id)

    def counting(self) -> AbstractContextManager[None]:
        """Hold one of the caller's places for counting tokens; raises `TooMany` where they are taken."""
        return self._ephemeral.counting(self._owner)

    async def count(
        self, texts: Sequence[str], messages: Sequence[Message] | None, tools: Sequence[dict[str, object]]
    ) -> TokenCounts:
        """Count tokens by the model's tokenizer, or guess where there is none; raises `EngineError`.

        Raises `TooLarge` for more text than one message may have.
        """
        self._sessions.require_somewhere("write")
        if len(texts) > _MOST_TEXTS:
            raise TooLarge(f"the tokens of {_MOST_TEXTS} texts are counted at a time; these are {len(texts)}")
        size = sum(map(len, texts)) + sum(len(message.content) for message in messages or ())
        if size > self._sessions.limits.message_bytes:
            most = self._sessions.limits.message_bytes
            raise TooLarge(f"the tokens of {most} characters are counted at a time; these are {size}")
        if isinstance(self._engine, CountsTokens):
            found = await self._engine.count_tokens(texts, messages, tools)
            return TokenCounts(counts=found.texts, prompt_tokens=found.prompt, exact=True)
        prompt = None
        if messages is not None:
            said = sum(MESSAGE_TOKENS + estimate_tokens(shown(message)) for message in messages or ())
            prompt = said + sum(estimate_tokens(str(tool)) for tool in tools)
        return TokenCounts(counts=tuple(map(estimate_tokens, texts)), prompt_tokens=prompt, exact=False)
