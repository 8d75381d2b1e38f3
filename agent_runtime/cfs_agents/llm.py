"""What an agent asks of a language model, and nothing about where that is."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cfs.wire import FinishReason, Message, Usage


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
    """What is new in a reply that is being written: text, thinking, or pieces of tool calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[CallPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply: the assistant's message, how it ended, and what it cost."""

    message: Message
    finish_reason: FinishReason
    usage: Usage


class Model(Protocol):
    """A language model, wherever it is."""

    def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncIterator[Chunk | Reply]:
        """Answer a conversation: yield what is new as it comes, then exactly one `Reply`.

        `tools` are described in the form of the OpenAI API. Raises `CfsError`; closing the iterator ends the reply.
        """
        ...
