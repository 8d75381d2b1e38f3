"""The model behind a CFS server: its completions and its count of tokens (H4, A7)."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cfs.api import complete_in_chunks, count_tokens, models
from cfs.completions import (
    ChatChunk,
    ChatMessage,
    ChatRequest,
    CompletionAccumulator,
    FunctionPiece,
    TokensRequest,
    ToolCallPiece,
    ToolSpec,
)
from cfs.errors import CfsError, ServerError
from cfs.transports.async_http import AsyncClient
from cfs.transports.tracing import is_on
from cfs.wire import Message, Price, Usage
from cfs_agents.base.events import Retrying
from cfs_agents.base.tracing import chat
from cfs_agents.loop.model import (
    SMALL_CONTEXT,
    CallPiece,
    Chunk,
    CompleteResponse,
    HasContextWindow,
    Item,
    Meter,
    Model,
)
from cfs_agents.loop.replies import reply_of
from cfs_agents.loop.retries import Retries, is_passing


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


_BYTES_PER_TOKEN = 2
"""Bytes of a request for each token that is reserved: more tokens than any usual text has."""
_METERED_REPLY = 2_048
"""Maximum tokens of a reply whose cost is limited, unless the settings say it. A longer one is continued."""
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
        self,
        client: AsyncClient,
        settings: ModelSettings | None = None,
        *,
        retries: Retries | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._client = client
        self._meter = meter
        self._settings = settings or ModelSettings()
        self._retries = retries or Retries()
        self._window: int | None = None
        self._price: Price | None = None

    def metered(self, meter: Meter) -> "ServerModel":
        """Return the same model, each of whose requests passes the meter."""
        return ServerModel(self._client, self._settings, retries=self._retries, meter=meter)

    async def price(self) -> Price | None:
        """Return what a million tokens cost, as the server says; None if it does not know."""
        if self._price is None:
            cards = (await self._retries.call(lambda: self._client.call(models()))).data
            self._price = next((card for card in cards if card.id == self._settings.name), cards[0]).price
        return self._price

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
        items, settings = self._attempts(messages, tools), self._settings
        if not is_on():
            return items
        return chat(items, _end_of, settings.name, temperature=settings.temperature, max_tokens=settings.max_tokens)

    async def _attempts(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> AsyncGenerator[Item]:
        model_request = self._request(messages, tools)
        with self._retries.request() as request:
            async for attempt in request.attempts():
                if request.error is not None and request.pause is not None:
                    yield Retrying(request.error.detail, request.pause)
                    await self._retries.sleep(request.pause)
                allowed = await self._allowed(model_request)
                with attempt:
                    async with aclosing(self._counted(allowed)) as items:
                        async for item in items:
                            request.spoke()
                            yield item
                    return

    def _request(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> ChatRequest:
        settings = self._settings
        return ChatRequest(
            messages=tuple(map(ChatMessage.of, messages)),
            model=settings.name,
            tools=tuple(map(ToolSpec.model_validate, tools)) or None,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
        )

    async def _allowed(self, request: ChatRequest) -> ChatRequest:
        """Reserve the most that a request can cost, which shortens its reply where the rest is small."""
        if self._meter is None or (price := await self.price()) is None:
            return request
        prompt = len(request.model_dump_json(include={"messages", "tools"}).encode()) // _BYTES_PER_TOKEN + 1
        max_tokens = await self._meter.reserve(price, prompt, request.max_tokens or _METERED_REPLY)
        return request.model_copy(update={"max_tokens": max_tokens})

    async def _counted(self, request: ChatRequest) -> AsyncGenerator[Chunk | CompleteResponse]:
        """Ask once, and count the cost: that of the reply, or what was reserved if it broke off after it had begun."""
        cost: float | None = 0.0
        try:
            async with aclosing(self._reply(request)) as items:
                async for item in items:
                    cost = item.usage.cost if isinstance(item, CompleteResponse) else None
                    yield item
        finally:
            if self._meter is not None:
                self._meter.settle(cost)

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
            counts_of_some = (await self._client.call(count_tokens(TokensRequest(texts=tuple(some))))).counts
            if len(counts_of_some) != len(some):
                raise ServerError(f"the server counted {len(counts_of_some)} texts where {len(some)} were asked for")
            counts += counts_of_some
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
    function = piece.function or FunctionPiece()
    return CallPiece(piece.index, piece.id, function.name, function.arguments or "")
