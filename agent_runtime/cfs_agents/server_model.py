"""The model behind a server of ours: replies by its completions, and its own count of tokens (H4, A7)."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cfs.api import complete_in_chunks, count_tokens
from cfs.completions import (
    Assembly,
    ChatChunk,
    ChatMessage,
    ChatRequest,
    FunctionPiece,
    TokensRequest,
    ToolCallPiece,
    ToolSpec,
)
from cfs.errors import ServerError
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message
from cfs_agents.llm import CallPiece, Chunk, Item, Reply, Retrying
from cfs_agents.replies import reply_of
from cfs_agents.retries import Retries

_MOST_CHARACTERS = 1 << 20
"""Of all texts that are counted in one request: in UTF-8 and JSON that is below what a server takes (8 MiB)."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is to answer; None leaves it to the server. `name` matters only where a server has many models."""

    name: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class ServerModel:
    """A `Model` that asks a server, which `client` knows (its URL is `CFS_URL` unless given, as in all of the SDK).

    A failure that may pass is told by `Retrying` and the whole reply is asked for again, also when it broke off in its
    middle, as often and as long as `retries` says (A7). What the request itself is to blame for is raised at once.
    """

    def __init__(
        self, client: AsyncClient, settings: ModelSettings | None = None, *, retries: Retries | None = None
    ) -> None:
        self._client = client
        self._settings = settings or ModelSettings()
        self._retries = retries or Retries()

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Yield what is new in the reply as it comes, then the reply (see `Model`)."""
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

    async def _reply(self, request: ChatRequest) -> AsyncGenerator[Chunk | Reply]:
        """Ask once."""
        whole = Assembly()
        async with aclosing(self._client.chunks(complete_in_chunks(request))) as chunks:
            async for chunk in chunks:
                whole.add(chunk)
                for piece in _pieces(chunk):
                    yield piece
        yield reply_of(whole.completion())


class ServerCounter:
    """A `TokenCounter` that asks a server; put it into a `CachedCounter`, so that it is asked once for each text."""

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


def _pieces(chunk: ChatChunk) -> Iterator[Chunk]:
    for choice in chunk.choices:
        delta = choice.delta
        calls = tuple(map(_call_piece, delta.tool_calls or ()))
        if delta.content or delta.reasoning_content or calls:
            yield Chunk(delta.content or "", delta.reasoning_content or "", calls)


def _call_piece(piece: ToolCallPiece) -> CallPiece:
    said = piece.function or FunctionPiece()
    return CallPiece(piece.index, piece.id, said.name, said.arguments or "")
