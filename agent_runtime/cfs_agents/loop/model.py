"""The interface to a language model, its retries, and the model behind a CFS server."""

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar, runtime_checkable
from uuid import uuid4

import tenacity

from cfs.api import complete_in_chunks, count_tokens, models
from cfs.completions import (
    UNREADABLE,
    ChatChunk,
    ChatCompletion,
    ChatMessage,
    ChatRequest,
    ChatToolCall,
    CompletionAccumulator,
    CompletionUsage,
    FunctionPiece,
    TokensRequest,
    ToolCallPiece,
    ToolSpec,
    read_arguments,
)
from cfs.errors import (
    CfsError,
    EngineError,
    InvalidRequest,
    ServerError,
    StorageFull,
    Timeout,
    TooMany,
    Unavailable,
    Unreachable,
    WorkerCrashed,
)
from cfs.transports.async_http import AsyncClient
from cfs.transports.tracing import is_on
from cfs.wire import FinishReason, Message, ToolCall, Usage
from cfs_agents.base.events import Retrying
from cfs_agents.base.tracing import chat

# Retries: a few after a fault, and during an outage for as long as the patience lasts.

PATIENCE = 900.0
"""Default time in seconds to wait for the end of an outage; the commands wait without a limit."""

_SLOWEST = 10.0
"""Longest pause between two requests in an outage."""
_MOST_BREAKS = 30
"""How often one reply may break off after its beginning, or crash the worker: the prompt may be the cause."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

T = TypeVar("T")


def is_passing(error: BaseException) -> bool:
    """Return whether to make the same request again: the server failed, not the request.

    What the server has repeated itself is not repeated here, unless it is an outage.
    """
    return (isinstance(error, CfsError) and error.should_retry) or is_outage(error)


def is_outage(error: BaseException) -> bool:
    """Return whether an error means an outage: no connection, or a server, disk or engine that asks to wait."""
    if type(error) in (Unavailable, Unreachable, WorkerCrashed, Timeout):
        return True
    if not isinstance(error, TooMany | EngineError | StorageFull) or error.retry_after is None:
        return False
    return error.passes or isinstance(error, StorageFull)


def seconds_of(text: str) -> float:
    """Read a duration: `90s`, `15m`, `2h`, `0`, a number of seconds, or `forever`. Raises `InvalidRequest`."""
    if text.strip() == "forever":
        return math.inf
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidRequest(f"{text!r} is not a duration: write it like 90s, 15m, 2h or forever")
    return float(found[1]) * _UNITS[found[2]]


class Outages:
    """Counts requests that wait for the server. Calls `begins` when the first starts to wait, `ends` after the last."""

    def __init__(
        self, begins: Callable[[CfsError], None] | None = None, ends: Callable[[], None] | None = None
    ) -> None:
        self._begins = begins
        self._ends = ends
        self._waiting = 0
        self._since = 0.0
        self._total = 0.0

    @property
    def seconds(self) -> float:
        """Total waiting time so far, in seconds."""
        return self._total + (time.monotonic() - self._since if self._waiting else 0.0)

    def enter(self, error: CfsError) -> None:
        """Count a request that starts to wait."""
        self._waiting += 1
        if self._waiting == 1:
            self._since = time.monotonic()
            if self._begins is not None:
                self._begins(error)

    def leave(self, *, answered: bool) -> None:
        """Count a request that is answered or abandoned."""
        self._total = self.seconds
        self._since = time.monotonic()
        self._waiting -= 1
        if not self._waiting and answered and self._ends is not None:
            self._ends()


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is made before its error counts, and the pauses between, in seconds (A7).

    A fault of the server is tried `tries` times. After an error that an outage makes (`is_outage`) the request is made
    again until `patience` has passed since the first one; 0 leaves it at the tries. Pauses are random up to a bound
    that begins at `first` and doubles up to ten seconds. A server that names a time itself (`Retry-After`) is heeded up
    to `longest`, or to the end of the patience. `outages` is shared by all who use one server. `sleep` is for tests.
    """

    tries: int = 3
    first: float = 1.0
    longest: float = 60.0
    patience: float = PATIENCE
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    outages: Outages = field(default_factory=Outages)

    def request(self, forever: Callable[[], bool] = lambda: False) -> "Request":
        """Begin a request; while `forever` returns true, an outage has no time limit."""
        return Request(self, forever)

    async def call(self, action: Callable[[], Awaitable[T]], forever: Callable[[], bool] = lambda: False) -> T:
        """Repeat an action until it succeeds or its error is final."""
        with self.request(forever) as request:
            async for attempt in request.attempts():
                if request.pause is not None:
                    await self.sleep(request.pause)
                with attempt:
                    return await action()
        raise AssertionError("unreachable")  # pragma: no cover


class Request:
    """One request that may be made several times. Use it in `with`: it counts as waiting after its first outage."""

    def __init__(self, retries: Retries, forever: Callable[[], bool]) -> None:
        self.error: CfsError | None = None
        """The last error; None before the first."""
        self.pause: float | None = None
        """Seconds to wait before the next attempt; None before the first."""
        self._retries = retries
        self._forever = forever
        self._faults = self._failures = self._breaks = 0
        self._waited = 0.0
        self._since: float | None = None
        self._waiting = self._spoke = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over(answered=error is None)

    def spoke(self) -> None:
        """Note that the answer has begun: the outage is over."""
        self._spoke = True
        self._over(answered=True)

    def attempts(self) -> tenacity.AsyncRetrying:
        """Make the loop: `async for attempt in ...: pause; with attempt: ...`.

        It does not pause itself, so the body of the loop can report the pause before taking it.
        """
        grows = tenacity.wait_random_exponential(multiplier=self._retries.first, max=_SLOWEST)

        def pause(state: tenacity.RetryCallState) -> float:
            asked = _error_of(state).retry_after
            return grows(state) if asked is None else asked

        return tenacity.AsyncRetrying(
            sleep=_not_here,
            stop=self._is_over,
            wait=pause,
            retry=tenacity.retry_if_exception(is_passing),
            before_sleep=self._wait,
            reraise=True,
        )

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        """Count a failure, and say whether it is the last."""
        error, pause, now = _error_of(state), state.upcoming_sleep, time.monotonic()
        outage, soon = is_outage(error), pause <= self._retries.longest
        self._breaks += self._spoke or (isinstance(error, WorkerCrashed) and error.retry_after is None)
        if self._since is None or self._spoke:
            self._since, self._waited, self._spoke = now, 0.0, False
        self._failures += 1
        self._faults += not outage
        self._waited += pause
        if not outage:
            return self._faults >= self._retries.tries or not soon
        if self._failures < self._retries.tries and soon:
            return False
        late = max(self._waited, now + pause - self._since) > self._retries.patience
        return self._breaks > _MOST_BREAKS or (late and not self._forever())

    def _wait(self, state: tenacity.RetryCallState) -> None:
        self.error, self.pause = _error_of(state), state.upcoming_sleep
        if not self._waiting and is_outage(self.error):
            self._waiting = True
            self._retries.outages.enter(self.error)

    def _over(self, *, answered: bool) -> None:
        if self._waiting:
            self._waiting = False
            self._retries.outages.leave(answered=answered)


async def _not_here(seconds: float) -> None:
    """Do not pause: the next attempt does."""


def _error_of(state: tenacity.RetryCallState) -> CfsError:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, CfsError):
        raise TypeError("only errors of CFS are repeated")
    return error


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call. `index` counts the calls of a reply from 0; `id` and `name` come with the first piece.

    `arguments` is the next piece of the arguments' JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next part of a reply: text, thinking, or pieces of tool calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[CallPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A finished reply: the assistant's message, its finish reason, and its usage.

    `broken` has a reason, for the model, for each call whose arguments could not be read, by the id of the call. Such a
    call stays in the message, so that the model sees what it wrote, but is not run: the reason is its result.
    """

    message: Message
    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    broken: Mapping[str, str] = field(default_factory=dict)


Item: TypeAlias = Chunk | Retrying | CompleteResponse
"""What a stream yields."""


class Model(Protocol):
    """A language model, wherever it is."""

    def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncIterator[Item]:
        """Answer a conversation: yield chunks as they come, then exactly one `CompleteResponse`.

        After a `Retrying` all chunks before it are void. `tools` are described in the form of the OpenAI API.
        Raises `CfsError`, `ContextTooLong` when the conversation must become shorter; closing the iterator ends the
        reply.
        """
        ...


@runtime_checkable
class HasContextWindow(Protocol):
    """A model that knows how much it reads."""

    async def context_window(self) -> int | None:
        """Return how many tokens the model reads at most; None if that is not known. Raises `CfsError`."""
        ...


SMALL_CONTEXT = 8192
"""Tokens: a model that reads fewer gets shorter prompts, and tools without the parameters that continue cut results.

The embedded model was trained on the words of these.
"""


async def has_small_context(model: Model) -> bool | None:
    """Return whether a model says that it reads less than `SMALL_CONTEXT`; None if that cannot be asked now."""
    try:
        if isinstance(model, ServerModel):
            window = await model.ask_context_window()
        else:
            window = await model.context_window() if isinstance(model, HasContextWindow) else None
    except CfsError as error:
        return None if is_passing(error) else False
    return window is not None and window < SMALL_CONTEXT


# From a finished completion to a reply: its message, its usage, and its broken calls. No I/O.
#
# A server that cannot read a call passes it on as text. That is not an answer but a broken call.

_SHOWN = 200
"""Characters of unreadable arguments that are said back to the model, of each end half."""

_MARK = re.compile(r"(?<![`'\"])(?:<tool_call>|\[TOOL_CALLS\]|\[CALL:|<\|python_tag\|>|<function=)(?![`'\"])")
_BARE = re.compile(r'\A\s*(?:```(?:json|tool_calls?)?\s*)?\[?\s*(?=\{\s*"(?:name|function|type|id)")')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"|<function=([\w.-]{1,64})|\[CALL:\s*([\w.-]{1,64})')
_NAMELESS = "unknown"


def reply_of(completion: ChatCompletion) -> CompleteResponse:
    """Read a completion. Calls without a unique id get a new one."""
    choice = completion.choices[0]
    said = tuple(_told_apart(choice.message.tool_calls or ()))
    message = choice.message.model_copy(update={"tool_calls": said}).message()
    cut_off = choice.finish_reason == "length"
    faults = {call.id: fault_of(call.function.name, call.function.arguments, cut_off=cut_off) for call in said}
    recorded = completion.cfs.finish_reason if completion.cfs else None
    return CompleteResponse(
        message=message,
        finish_reason=recorded or choice.finish_reason,
        usage=_usage(completion.usage),
        broken={call: fault for call, fault in faults.items() if fault is not None},
    )


def fault_of(name: str, text: str, *, cut_off: bool) -> str | None:
    """Return, for the model, why a call with these arguments cannot run; None if it can."""
    if not name:
        return "the call names no tool"
    if read_arguments(text).keys() != {UNREADABLE} and (text.strip() or not cut_off):
        return None
    if cut_off:
        return (
            f"the call is cut off, as the reply reached its limit of tokens: write less at once. It was: {_short(text)}"
        )
    return f"the arguments are no JSON object: {_problem(text)}. They were: {_short(text)}"


def with_calls_in_text(reply: CompleteResponse, names: Collection[str]) -> CompleteResponse:
    """If a reply holds a call as text, return it with a broken call instead; `names` are those of the tools.

    A text that only mentions calls has their marks between quotes or backticks. Without a mark, it is a call only if it
    names a tool.
    """
    text = reply.message.content
    begun = _MARK.search(text) or _BARE.match(text)
    if begun is None or not names:
        return reply
    said, call = text[: begun.start()].rstrip(), text[begun.start() :].strip()
    found = _NAME.search(call)
    name = next(filter(None, found.groups()), "") if found else next((each for each in names if each in call), "")
    if begun.re is _BARE and name not in names:
        return reply
    made = ToolCall(id=f"call_{uuid4().hex[:16]}", name=name or _NAMELESS, arguments={UNREADABLE: call})
    message = reply.message.model_copy(update={"content": said, "tool_calls": (*reply.message.tool_calls, made)})
    fault = f"the call cannot be read: {_problem_of_call(call[begun.end() - begun.start() :])}. It was: {_short(call)}"
    return replace(reply, message=message, broken={**reply.broken, made.id: fault})


def _problem_of_call(text: str) -> str:
    """Return what is wrong with a call, given the text after its mark."""
    text = text.lstrip()
    if not text.startswith(("{", "[")):
        return "it has not the form of a call"
    try:
        json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {error}"
    return "it stands in the text, where it is none"


def _problem(text: str) -> str:
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        return str(error)
    if isinstance(found, dict):
        return "they hold a number or a character that JSON does not have"
    return f"this is a {type(found).__name__}"


def _short(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def _told_apart(calls: Sequence[ChatToolCall]) -> Iterator[ChatToolCall]:
    seen: set[str] = set()
    for call in calls:
        if not call.id or call.id in seen:
            call = call.model_copy(update={"id": f"call_{uuid4().hex[:16]}"})
        seen.add(call.id)
        yield call


def _usage(usage: CompletionUsage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


# The model behind a CFS server: its completions and its count of tokens (H4, A7).

_MOST_CHARACTERS = 1 << 20
"""Maximum length of all texts in one request, so that its JSON stays below the server's limit (8 MiB)."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of replies; None means the server's default. `name` matters only if a server has several models."""

    name: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class ServerModel:
    """A `Model` behind the server of `client`, whose URL is `CFS_URL` unless given.

    After a failure that may pass it yields `Retrying` and requests the whole reply again, as often and as long as
    `retries` allows (A7). Errors of the request itself are raised at once.
    """

    def __init__(
        self, client: AsyncClient, settings: ModelSettings | None = None, *, retries: Retries | None = None
    ) -> None:
        self._client = client
        self._settings = settings or ModelSettings()
        self._retries = retries or Retries()
        self._window: int | None = None

    async def context_window(self) -> int | None:
        """Return how many tokens the model reads at most, as the server says; None if it does not know."""
        return await self._retries.call(self.ask_context_window)

    async def ask_context_window(self) -> int | None:
        """Do the same, and raise the error at once if the server does not answer."""
        if self._window is None:
            self._window = (await self._client.call(models())).data[0].max_model_len
        return self._window

    def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Yield chunks as they come, then the reply (see `Model`)."""
        items, asked = self._attempts(messages, tools), self._settings
        if not is_on():
            return items
        return chat(items, _end_of, asked.name, temperature=asked.temperature, max_tokens=asked.max_tokens)

    async def _attempts(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> AsyncGenerator[Item]:
        asked = self._request(messages, tools)
        with self._retries.request() as request:
            async for attempt in request.attempts():
                if request.error is not None and request.pause is not None:
                    yield Retrying(request.error.detail, request.pause)
                    await self._retries.sleep(request.pause)
                with attempt:
                    async with aclosing(self._reply(asked)) as items:
                        async for item in items:
                            request.spoke()
                            yield item
                    return

    def _request(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> ChatRequest:
        asked = self._settings
        return ChatRequest(
            messages=tuple(map(ChatMessage.of, messages)),
            model=asked.name,
            tools=tuple(map(ToolSpec.model_validate, tools)) or None,
            temperature=asked.temperature,
            max_tokens=asked.max_tokens,
            seed=asked.seed,
        )

    async def _reply(self, request: ChatRequest) -> AsyncGenerator[Chunk | CompleteResponse]:
        """Ask once."""
        whole = CompletionAccumulator()
        async with aclosing(self._client.chunks(complete_in_chunks(request))) as chunks:
            async for chunk in chunks:
                whole.add(chunk)
                for piece in _pieces(chunk):
                    yield piece
        yield reply_of(whole.completion())


class ServerCounter:
    """A `TokenCounter` that asks a server; wrap it in a `CachedCounter` to ask only once for each text."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text; raises `CfsError`."""
        counts: list[int] = []
        for some in _batches(texts):
            told = (await self._client.call(count_tokens(TokensRequest(texts=tuple(some))))).counts
            if len(told) != len(some):
                raise ServerError(f"the server counted {len(told)} texts where {len(some)} were asked for")
            counts += told
        return counts


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > _MOST_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _end_of(item: Item) -> tuple[str, Usage] | None:
    return (item.finish_reason, item.usage) if isinstance(item, CompleteResponse) else None


def _pieces(chunk: ChatChunk) -> Iterator[Chunk]:
    for choice in chunk.choices:
        delta = choice.delta
        calls = tuple(map(_call_piece, delta.tool_calls or ()))
        if delta.content or delta.reasoning_content or calls:
            yield Chunk(delta.content or "", delta.reasoning_content or "", calls)


def _call_piece(piece: ToolCallPiece) -> CallPiece:
    said = piece.function or FunctionPiece()
    return CallPiece(piece.index, piece.id, said.name, said.arguments or "")
