"""The interface to a language model."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from cfs.wire import FinishReason, Message, Price, Usage
from cfs_agents.base.events import Retrying


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


class Meter(Protocol):
    """Decides about each request of one agent before it is made, and counts what it has cost."""

    async def reserve(self, price: Price, prompt_tokens: int, reply_tokens: int) -> int:
        """Return the most tokens that a reply may have. Raises `TooMany` if the request may not be made."""
        ...

    def settle(self, cost: float | None) -> None:
        """Count the cost of the request in US dollars; None if it is not known."""
        ...


@runtime_checkable
class HasPrice(Protocol):
    """A model whose requests cost money."""

    async def price(self) -> Price | None:
        """Return what a million tokens cost; None if that is not known. Raises `CfsError`."""
        ...

    def metered(self, meter: Meter) -> Model:
        """Return the same model, each of whose requests passes the meter."""
        ...


SMALL_CONTEXT = 8192
"""Tokens: a model that reads fewer gets shorter prompts, and tools without the parameters that continue cut results.

The embedded model was trained on the words of these.
"""
