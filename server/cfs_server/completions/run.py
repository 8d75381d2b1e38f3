"""Runs completions: ephemeral ones, which end when their client leaves, and turns of sessions."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

from cfs.completions import ModelCard, Recorded, TokenCounts
from cfs.completions.estimates import estimate_inputs, estimate_prompt, estimate_tokens
from cfs.errors import Conflict, EngineError, ModelNotFound, TooLarge, TooMany, Unavailable, Unsupported
from cfs.wire import Message, Settings, SettingsPatch, Usage
from cfs_server.base.broadcast import Broadcast
from cfs_server.completions.requests import DEFAULT_TOKENS, CompletionSpec, Conversations, lack_ids, with_ids
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.message_sizes import check_content
from cfs_server.domain.quotas import StorageUsage, StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import Turn, TurnRequest
from cfs_server.engine.contract.interface import (
    MAX_TIMES,
    CountsTokens,
    Delta,
    EmbeddingRequest,
    Embeddings,
    Embeds,
    Engine,
    Finished,
    GenerationRequest,
    Kind,
    ReplyLost,
    engine_of,
    predicted_wait,
)
from cfs_server.sessions import tracing
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session
from cfs_server.sessions.spending import Spending

# Completions that a session records are normal turns (S4, H4). What ends them is decided by their routes.


def submit(sessions: AuthorizedSessions, session_id: str, spec: CompletionSpec) -> tuple[Session, Turn, LoggedEvent]:
    """Send the last message to a session as a turn. The other messages are the conversation before it.

    Requires the rights to write and to read. To replace a different history, the right to delete is also required.
    Raises `Conflict` if the session is answered by an agent, which has its own tools.
    """
    existing = sessions.find(session_id, "write")
    sessions.require("read_binary", session_id)
    settings = existing.settings if existing else Settings()
    if settings.driver == "agent" and (spec.options.tools or spec.options.json_schema):
        raise Conflict(f"session {session_id!r} is answered by an agent, which takes neither tools nor a form")
    messages, view = spec.messages, spec.before
    if lack_ids(messages) and view is not None:
        messages = with_ids(messages, existing.history.messages if existing else ())
        view = SizedMessages.of(messages[:-1])
    request = TurnRequest(
        messages[-1],
        settings=_patch(spec.patch, settings),
        options=spec.options,
        view=view,
    )
    return sessions.submit(session_id, request)


async def follow(session: Session, turn: Turn, check: Callable[[], None]) -> AsyncIterator[Delta | Finished]:
    """Yield the existing and the new pieces of a turn, then its end. Closing the iterator does not cancel the turn.

    `check` raises an error when the reader may no longer read. Raises the error of a failed turn, and `EngineError` if
    a reply of which the reader has pieces begins again.
    """
    sent, times, passed_on = 0, turn.times, False
    while True:
        if turn.times != times and passed_on:
            raise EngineError(
                f"the reply in session {session.id!r} broke off and begins again: what came before is void"
            )
        times = turn.times
        if sent < len(turn.said):
            check()
            sent, passed_on = sent + 1, True
            yield turn.said[sent - 1]
        elif turn.result.done():
            break
        else:
            await session.log.broadcast.wait()
            sent = min(sent, len(turn.said))  # the output of a dead agent is removed (S10)
    result = turn.result.result()
    check()
    if result.failure is not None:
        raise result.failure
    text = turn.text.strip()
    if result.reason != "cancelled" and result.reply.startswith(text) and result.reply != text:
        yield Delta(result.reply[len(text) :], 0)  # an agent may finish a turn with text that it did not stream
    yield Finished(result.reason, result.usage, turn.stop, turn.warnings)


def _patch(patch: SettingsPatch, settings: Settings) -> SettingsPatch:
    """Raise the default reply limit to that of completions, unless the session has its own limit.

    The program sends the whole conversation and decides what to leave out. A prompt that is too long is an error.
    """
    changes: dict[str, Any] = {"overflow": "error"}
    if patch.max_tokens is None and settings.max_tokens == Settings().max_tokens:
        changes["max_tokens"] = DEFAULT_TOKENS
    return patch.model_copy(update=changes)


_DEFAULTS = Settings(max_tokens=DEFAULT_TOKENS)
_KIND: Kind = "agent"
COUNTS_AT_A_TIME = 2
"""Maximum number of concurrent token counts of one owner."""
EMBEDDED_AT_A_TIME = 32
"""Maximum number of concurrent requests for embeddings of one owner."""

Items = AsyncIterator[Delta | Finished]
"""The output of an engine: pieces, then exactly one end."""


@dataclass(frozen=True, slots=True)
class RunningCompletion:
    """A completion that has begun: its pieces and the name of its model, and its turn if a session records it."""

    items: Items
    model: str
    recorded: Recorded | None = None
    session: Session | None = None
    turn: Turn | None = None
    whole: Items | None = None
    """The same pieces, all at the end, for a client that gets them together. Then a lost reply begins again."""


class EphemeralCompletions:
    """Runs completions with an engine in parallel, and counts them until they end."""

    def __init__(self, engine: Engine, limits: StoreLimits, spending: Spending) -> None:
        self._engine = engine
        self._limits = limits
        self._spending = spending
        self._conversations = Conversations(engine.forget)
        self._running: set[str] = set()
        self.changed = Broadcast()
        """Fires when a completion has ended."""
        self._draining = False
        self._counting: Counter[str] = Counter()
        self._embedding: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """The number of running completions."""
        return len(self._running)

    def check(self, account: StorageUsage, model: str | None) -> None:
        """Raise `Unavailable` at shutdown, and `TooMany` if the predicted wait is too long or a limit is spent."""
        if self._draining:
            raise _shutting_down()
        self._limits.check_wait(predicted_wait(self._engine, model, account.owner, _KIND))
        self._spending.check(account, model)

    def counting(self, owner: str) -> AbstractContextManager[None]:
        """Reserve a token count for an owner. Raises `TooMany` if the owner has too many at the same time."""
        return _place(self._counting, owner, COUNTS_AT_A_TIME, "tokens are counted")

    async def whole(self, spec: CompletionSpec, account: StorageUsage) -> Items:
        """Yield the pieces of a completion when it has ended. A reply that breaks off begins again."""
        for times in range(1, MAX_TIMES + 1):
            try:
                async with contextlib.aclosing(self.make(spec, account, times)) as items:
                    pieces = [item async for item in items]
            except ReplyLost:
                if times == MAX_TIMES:
                    raise
            else:
                break
        for item in pieces:
            yield item

    async def make(
        self, spec: CompletionSpec, account: StorageUsage, times: int = 1
    ) -> AsyncGenerator[Delta | Finished]:
        """Yield the pieces of a completion, then its end. Closing the iterator stops the generation.

        What was spent is counted, or estimated if the iterator is closed before the end. Raises `EngineError`, also at
        the time limit, `Unavailable` at shutdown, and `ReplyLost`.
        """
        request = GenerationRequest(
            uuid.uuid4().hex,
            self._conversations.key(account.owner, spec.messages, spec.options.tools),
            with_ids(spec.messages),
            _DEFAULTS.patched(spec.patch),
            spec.options,
            owner=account.owner,
            account=spec.account,
            kind=_KIND,
            deadline_seconds=self._limits.turn_seconds,
            times=times,
        )
        self._running.add(request.id)
        usage: Usage | None = None
        generated = 0
        items = cast("AsyncGenerator[Delta | Finished]", tracing.generate(self._engine, request))
        try:
            async with contextlib.aclosing(items):
                async for item in items:
                    if isinstance(item, Finished) and item.reason == "cancelled" and self._draining:
                        raise _shutting_down()
                    if isinstance(item, Finished):
                        usage = self._spending.price(item.usage, spec.patch.model)
                        item = replace(item, usage=usage)
                    else:
                        generated += item.tokens
                    yield item
        finally:
            if usage is None and generated:  # the client has left
                prompt = estimate_prompt(request.messages, spec.options.tools)
                usage = Usage(prompt_tokens=prompt, completion_tokens=generated)
                usage = self._spending.price(usage, spec.patch.model)
            if usage is not None and usage != Usage():
                self._spending.add(account, usage, spec.patch.model)
            self._running.remove(request.id)
            self.changed.fire()

    async def embed(self, request: EmbeddingRequest, account: StorageUsage) -> tuple[Embeddings, Usage]:
        """Make embeddings, and return them with what they cost.

        What was spent is counted, or estimated if the client leaves before the end. Raises `EngineError`,
        `Unsupported`, and `TooMany` if the owner has too many requests at the same time.
        """
        if not isinstance(self._engine, Embeds):
            raise Unsupported("the engine of this server makes no embeddings")
        name, usage = uuid.uuid4().hex, Usage()
        self._running.add(name)
        try:
            with _place(self._embedding, request.owner, EMBEDDED_AT_A_TIME, "texts are embedded"):
                try:
                    embeddings = await tracing.embed(self._engine, request)
                    usage = self._spending.price(Usage(prompt_tokens=embeddings.tokens), request.model)
                except asyncio.CancelledError:
                    tokens = estimate_inputs(request.inputs)
                    usage = self._spending.price(Usage(prompt_tokens=tokens), request.model)
                    raise
            return embeddings, usage
        finally:
            if usage != Usage():
                self._spending.add(account, usage, request.model)
            self._running.remove(name)
            self.changed.fire()

    async def drain(self, grace: float) -> None:
        """Accept no new completions, let running ones finish for `grace` seconds, then cancel the rest (P3)."""
        self._draining = True
        try:
            async with asyncio.timeout(grace):
                while self._running:
                    await self.changed.wait()
        except TimeoutError:
            for request_id in self._running:
                self._engine.cancel(request_id)


@contextlib.contextmanager
def _place(places: Counter[str], owner: str, limit: int, what: str) -> Iterator[None]:
    """Take one of an owner's places. Raises `TooMany` if all are in use."""
    if places[owner] >= limit:
        raise TooMany(f"{what} for you {limit} requests at a time; try again when one is answered", retry_after=1.0)
    places[owner] += 1
    try:
        yield
    finally:
        places[owner] -= 1
        if not places[owner]:
            del places[owner]


def _shutting_down() -> Unavailable:
    return Unavailable("the server is shutting down", retry_after=5)


# Completions for one caller: the only access from a route to the engine (G9).
#
# A caller who may write to any session may also request completions. A completion that a session records requires the
# rights for that session too.

_MOST_TEXTS = 10_000


class AuthorizedCompletions:
    """The completions of one caller. Computation is shared only between requests of the same caller."""

    def __init__(
        self,
        models: Sequence[ModelCard],
        engine: Engine,
        ephemeral: EphemeralCompletions,
        sessions: AuthorizedSessions,
        account: StorageUsage,
    ) -> None:
        self.models = models
        """All models, the default first."""
        self._engine = engine
        self._ephemeral = ephemeral
        self._sessions = sessions
        self._account = account

    @property
    def limits(self) -> StoreLimits:
        """The limits of a conversation."""
        return self._sessions.limits

    def choose(self, requested: str) -> str | None:
        """Return the model that a request names; None leaves it to the session or the server.

        A server with one model answers by that, whatever the request calls it. Raises `ModelNotFound`.
        """
        if len(self.models) == 1 or not requested:
            return None
        return self.card(requested).id

    def card(self, name: str) -> ModelCard:
        """Return a model. Raises `ModelNotFound`."""
        match = next((card for card in self.models if card.id == name), None)
        if match is None:
            names = ", ".join(repr(card.id) for card in self.models)
            word = "there is" if len(self.models) == 1 else "there are"
            raise ModelNotFound(f"model {name!r} not found; {word} {names}")
        return match

    async def begin(
        self, spec: CompletionSpec, session_id: str | None, submitted: Callable[[Session, Turn, LoggedEvent], None]
    ) -> RunningCompletion:
        """Start a completion, in a session if one is named.

        `submitted` gets the turn, in the callback of the event loop that starts it.
        """
        if session_id is None:
            self._sessions.require_somewhere("write")
            self._ephemeral.check(self._account, spec.patch.model)
            model = spec.patch.model or self.models[0].id
            pieces, whole = self._ephemeral.make(spec, self._account), self._ephemeral.whole(spec, self._account)
            return RunningCompletion(pieces, model, whole=whole)
        async with self._sessions.loaded(session_id):
            session, turn, event = submit(self._sessions, session_id, spec)
            submitted(session, turn, event)
        return self.pieces_of(session, turn)

    async def resume(self, key: str, turn_id: str, after: int) -> RunningCompletion:
        """Return all pieces of a completion that was started earlier in a session; see `AuthorizedSessions.turn`."""
        session = self._sessions.with_key(key, "write", "read_binary")
        return self.pieces_of(session, await self._sessions.turn(session, turn_id, after))

    def pieces_of(self, session: Session, turn: Turn) -> RunningCompletion:
        """Return all pieces of a turn. Each requires the right to read."""
        requested = session.id
        items = follow(session, turn, lambda: self._sessions.require_still(session, requested, "read_binary"))
        return RunningCompletion(
            items, self.name_of(session, turn), Recorded(session=session.id, turn=turn.id), session, turn
        )

    def name_of(self, session: Session, turn: Turn) -> str:
        """Return the name of the model that answers a turn."""
        return turn.request.model(session.settings) or self.models[0].id

    def counting(self) -> AbstractContextManager[None]:
        """Reserve one of the caller's places for token counting. Raises `TooMany` if all are in use."""
        return self._ephemeral.counting(self._account.owner)

    async def embed(self, request: EmbeddingRequest) -> tuple[Embeddings, Usage, str]:
        """Make embeddings of a model; return them, what they cost, and the name of the model.

        Raises `TooLarge` for more text than one message may have.
        """
        self._sessions.require_somewhere("write")
        limits = self._sessions.limits
        for text in request.inputs:
            if isinstance(text, str):
                check_content(text, limit=limits.message_bytes)
        if sum(map(len, request.inputs)) > limits.message_bytes:
            raise TooLarge(f"one request has {limits.message_bytes} characters or tokens at most")
        self._ephemeral.check(self._account, request.model)
        request = replace(request, owner=self._account.owner, deadline_seconds=limits.turn_seconds)
        return *await self._ephemeral.embed(request, self._account), request.model or self.models[0].id

    async def count(
        self,
        texts: Sequence[str],
        messages: Sequence[Message] | None,
        tools: Sequence[dict[str, object]],
        model: str | None = None,
    ) -> TokenCounts:
        """Count tokens with a model's tokenizer, or estimate them without one. Raises `EngineError`.

        Raises `TooLarge` for more text than one message may have.
        """
        self._sessions.require_somewhere("write")
        if len(texts) > _MOST_TEXTS:
            raise TooLarge(f"the tokens of {_MOST_TEXTS} texts are counted at a time; these are {len(texts)}")
        size = sum(map(len, texts)) + sum(len(message.content) for message in messages or ())
        if size > self._sessions.limits.message_bytes:
            max_bytes = self._sessions.limits.message_bytes
            raise TooLarge(f"the tokens of {max_bytes} characters are counted at a time; these are {size}")
        engine = engine_of(self._engine, model)
        if isinstance(engine, CountsTokens):
            counts = await engine.count_tokens(texts, messages, tools)
            return TokenCounts(counts=counts.texts, prompt_tokens=counts.prompt, exact=True)
        prompt = None if messages is None else estimate_prompt(messages, tools)
        return TokenCounts(counts=tuple(map(estimate_tokens, texts)), prompt_tokens=prompt, exact=False)
