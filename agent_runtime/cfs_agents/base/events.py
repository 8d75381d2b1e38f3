"""The events of an agent at work, in the order in which things happen (A7, A8). No I/O.

A task consists of steps; a step is one reply of the model with its calls:

    RoundStarted, (Thinking | Text | Retrying)*, TurnUsage, (CallStarted, ContextUpdated?, CallFinished)*

A truncated reply is followed by another one in the same step. `ContextShortened` and `Warned` may come anywhere before
the end. At the end come `FileChanges`, if any file has changed, and `Finished`, which is always last.
"""

from dataclasses import dataclass
from typing import (
    Literal,
    TypeAlias,
)

from cfs.wire import Message, ToolCall, Usage

__all__ = [
    "AgentEvent",
    "CallFinished",
    "CallStarted",
    "ContextShortened",
    "ContextUpdated",
    "EndReason",
    "FileChanges",
    "Finished",
    "Retrying",
    "RoundStarted",
    "Text",
    "Thinking",
    "ToolResult",
    "TurnUsage",
    "Warned",
]


@dataclass(frozen=True, slots=True)
class Retrying:
    """The reply failed for this reason and is requested again after so many seconds.

    Its chunks so far are void; the chunks that follow start from the beginning.
    """

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call: `text` for the model, and the duration in seconds.

    If `ok` is false, `text` is the reason of the failure. `truncated` is true if something was left out: the text was
    longer than the tool's `most_characters`, or the tool itself cut it (`CutText`).
    """

    call_id: str
    name: str
    text: str
    ok: bool
    seconds: float
    truncated: bool = False

    def message(self) -> Message:
        """Return the message with which the model gets the result."""
        return Message(role="tool", content=self.text, tool_call_id=self.call_id, name=self.name)


EndReason = Literal["answered", "unverified", "rounds", "interrupted", "failed"]
"""How a task ends: by an answer, by an answer with false claims about files, at the limit of steps, by an interruption,
or by an error."""


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A step begins: the model is asked. `number` counts the steps of the task from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class Thinking:
    """The next piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """The next piece of the model's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool call begins. Several may run at once; `call.id` identifies each."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call has a result. A call that could not be read has one too, without `CallStarted`."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ContextUpdated:
    """The model has written a new context window: its lines, and its number in the task, from 1 (A4)."""

    lines: int
    number: int


@dataclass(frozen=True, slots=True)
class ContextShortened:
    """The conversation was too long and messages have left it; `summarised` if a summary replaces them (O5)."""

    tokens_before: int
    tokens_after: int
    summarised: bool = False


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning for a person, in one sentence; the work continues."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """The tokens that the reply of this step, or a summary, has used."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class FileChanges:
    """The files that have changed since the task began: their paths, sorted."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether any file has changed."""
        return bool(self.created or self.changed or self.deleted)


@dataclass(frozen=True, slots=True)
class Finished:
    """The task has ended; without an answer `detail` is the reason in words."""

    reason: EndReason
    detail: str = ""


AgentEvent: TypeAlias = (
    RoundStarted
    | Thinking
    | Text
    | Retrying
    | TurnUsage
    | CallStarted
    | CallFinished
    | ContextUpdated
    | ContextShortened
    | Warned
    | FileChanges
    | Finished
)
