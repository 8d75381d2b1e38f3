"""Recorders store what an agent does. The loop calls them at each step and continues when they return."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cfs.wire import ToolCall, Usage
from cfs_agents.base.events import Finished, ToolResult
from cfs_agents.context import ContextItem, Conversation, ConversationChange


@dataclass(frozen=True, slots=True)
class NewContext:
    """A conversation that replaces the present one, because a call has written a new window of so many lines."""

    context: Conversation
    lines: int


class Recorder(Protocol):
    """Stores each step of an agent. A `CfsError` that it raises ends the task."""

    async def before_round(self) -> None:
        """The model is about to be asked."""
        ...

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Store a message of the user, or of the model, which used `usage`; calls in `broken` are not run.

        An item with the id of the last one replaces it: it is the whole of a truncated reply.
        """
        ...

    async def shortened(self, change: ConversationChange) -> None:
        """Store a change of the conversation: items were off-loaded or have left."""
        ...

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Store that calls are about to run, all at the same time."""
        ...

    async def done(
        self, call: ToolCall, result: ToolResult, item: ContextItem, later: Sequence[ToolCall]
    ) -> NewContext | None:
        """Store the result of a call; `later` are the calls of the same reply that have none yet."""
        ...

    async def ended(self, end: Finished) -> None:
        """Store that the task has ended."""
        ...


class NullRecorder:
    """Stores nothing."""

    async def before_round(self) -> None:
        """Do nothing."""

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Do nothing."""

    async def shortened(self, change: ConversationChange) -> None:
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
