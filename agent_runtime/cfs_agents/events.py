"""What an agent says while it works: small values in the order in which things happen (A7, A8). Pure: no I/O.

A task is rounds, and a round is one reply of the model with the calls that it makes:

    RoundStarted, (Thinking | Text | Retrying)*, TurnUsage, (CallStarted, ContextUpdated?, CallFinished)*

A reply that was cut off is followed by another one in the same round. `ContextShortened` and `Warned` may come anywhere
before the end. `FileChanges` tells at the end what has become of the files, if anything has, and `Finished` is the
last of all.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cfs.wire import ToolCall, Usage
from cfs_agents.model import Retrying
from cfs_agents.tools.registry import ToolResult

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
    "TurnUsage",
    "Warned",
]

EndReason = Literal["answered", "unverified", "rounds", "interrupted", "failed"]
"""How a task ends: by an answer, by one that says of files what is not so, at the limit of rounds, because somebody
stopped it, or by an error."""


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The model is asked; `number` counts the rounds of the task from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of what the model says to itself, as it comes."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of what the model says, as it comes."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool is called. Several may be at work at once; `call.id` tells them apart."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call has come to its result; a call that could not be read has one, too, without having been started."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ContextUpdated:
    """The model has written a new context window: how many lines it has, and which of the task it is, from 1 (A4)."""

    lines: int
    number: int


@dataclass(frozen=True, slots=True)
class ContextShortened:
    """The conversation was too long, and messages have left it; `summarised` if a summary stands for them (O5)."""

    tokens_before: int
    tokens_after: int
    summarised: bool = False


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that a person should know, and that does not stop the work: in a sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """What the reply of this round cost, or a summary."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class FileChanges:
    """The files that are not as they were when the task began, by their paths, sorted."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.created or self.changed or self.deleted)


@dataclass(frozen=True, slots=True)
class Finished:
    """The task is over; `detail` is the reason in words when there was no answer."""

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
