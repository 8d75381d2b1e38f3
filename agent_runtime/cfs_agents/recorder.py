"""Who writes down what an agent does: the loop tells it, and goes on only when it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cfs.wire import ToolCall, Usage
from cfs_agents.context import Change, Context, ContextItem
from cfs_agents.events import Finished
from cfs_agents.tools.registry import ToolResult


@dataclass(frozen=True, slots=True)
class NewContext:
    """A conversation that takes the place of the present one, as a call has written a new window of so many lines."""

    context: Context
    lines: int


class Recorder(Protocol):
    """Told of each step; a `CfsError` that it raises ends the task."""

    async def before_round(self) -> None:
        """The model is about to be asked."""
        ...

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """A message of the user has come, or the model's, which has cost `usage`; calls in `broken` are not run.

        An item with the id of the last one takes its place: the rest of a reply that was cut off.
        """
        ...

    async def shortened(self, change: Change) -> None:
        """The conversation is another one now: something was off-loaded, or has left."""
        ...

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Calls are about to be run, at the same time where there are several."""
        ...

    async def done(
        self, call: ToolCall, result: ToolResult, item: ContextItem, later: Sequence[ToolCall]
    ) -> NewContext | None:
        """A call has come to its result; `later` are the calls of the same reply that have none yet."""
        ...

    async def ended(self, end: Finished) -> None:
        """The task is over."""
        ...


class NullRecorder:
    """Writes nothing down."""

    async def before_round(self) -> None:
        """Do nothing."""

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Do nothing."""

    async def shortened(self, change: Change) -> None:
        """Do nothing."""

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Do nothing."""

    async def done(
        self,
        call: ToolCall,  # noqa: ARG002 - the signature is the protocol's
        result: ToolResult,  # noqa: ARG002
        item: ContextItem,  # noqa: ARG002
        later: Sequence[ToolCall],  # noqa: ARG002
    ) -> NewContext | None:
        """Do nothing."""
        return None

    async def ended(self, end: Finished) -> None:
        """Do nothing."""
