"""What an agent asks of a language model, and nothing about where that is."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

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
class Retrying:
    """The reply broke off, or did not begin, for this reason: it is asked for again after so many seconds.

    What this reply has brought so far is void; the chunks that follow begin it anew.
    """

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply: the assistant's message, how it ended, and what it cost.

    `broken` tells of each call whose arguments could not be read, by its id, what is wrong with them, in words for the
    model. Such a call stands in the message, so that the model sees what it wrote, but must not be made: its result is
    what `broken` says.
    """

    message: Message
    finish_reason: FinishReason
    usage: Usage
    broken: Mapping[str, str] = field(default_factory=dict)


Item: TypeAlias = Chunk | Retrying | Reply
"""What a stream brings."""


class Model(Protocol):
    """A language model, wherever it is."""

    def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncIterator[Item]:
        """Answer a conversation: yield what is new as it comes, then exactly one `Reply`.

        After a `Retrying` all chunks before it count for nothing. `tools` are described in the form of the OpenAI API.
        Raises `CfsError`, `ContextTooLong` when the conversation must become shorter; closing the iterator ends the
        reply.
        """
        ...
