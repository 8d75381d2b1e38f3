"""The recorder of every agent with a state on disk: each step is stored before the agent goes on (A1, B3).

The steps are in the agent's journal. A file agent has a run log, which a new context window replaces; an agent of a
tree has the messages of its session and the state of its task.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cfs.wire import ToolCall, Usage
from cfs_agents.base.events import Finished, ToolResult
from cfs_agents.context import ContextItem, Conversation, ConversationChange
from cfs_agents.loop.recorder import NewContext
from cfs_agents.tree.published import PublishedWorkspace
from cfs_agents.tree.tool_names import CHANGES_NO_FILES, NEEDS_NO_FILES


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an agent goes on, as its journal says: the conversation without the system prompt, and its open calls.

    `begun` are the ids of the open calls that have begun, `broken` the reasons why calls could not be read, by id, and
    `failed_call` is the error of the last call.
    """

    context: Conversation
    begun: Collection[str] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    failed_call: str = ""


class StepJournal(Protocol):
    """The steps of one agent on disk. Each method returns when a kill cannot undo its step any more."""

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Store a message (see `Recorder.added`)."""
        ...

    async def shortened(self, change: ConversationChange) -> None:
        """Store a change of the conversation."""
        ...

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Store that calls are about to run."""
        ...

    async def done(
        self, call: ToolCall, result: ToolResult, item: ContextItem, later: Sequence[ToolCall]
    ) -> NewContext | None:
        """Store the result of a call (see `Recorder.done`)."""
        ...

    def shown(self, item: ContextItem) -> None:
        """A stored result may be seen by others now: the files that its call has changed are there before it."""
        ...

    async def ended(self, end: Finished) -> None:
        """Store that the task has ended."""
        ...


class AgentRecorder:
    """Stores the steps of one agent in its journal; a `Recorder`.

    Calls see the files of the `published` workspace, and their changes are there before their results. `before_round`
    is awaited before each request to the model.
    """

    def __init__(
        self,
        journal: StepJournal,
        before_round: Callable[[], Coroutine[Any, Any, None]],
        published: PublishedWorkspace | None,
    ) -> None:
        self._journal = journal
        self._published = published
        self.before_round = before_round
        self.added = journal.added
        self.shortened = journal.shortened
        self.ended = journal.ended

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Store that calls are about to run, and fetch the files that others have changed on the server."""
        await self._journal.begins(calls)
        if self._published is not None and any(call.name not in NEEDS_NO_FILES for call in calls):
            await self._published.both()

    async def done(
        self, call: ToolCall, result: ToolResult, item: ContextItem, later: Sequence[ToolCall]
    ) -> NewContext | None:
        """Store a result, and send the files that the call has changed before the result is shown."""
        new = await self._journal.done(call, result, item, later)
        try:
            if self._published is not None and call.name not in CHANGES_NO_FILES:
                await self._published.send()
        finally:
            self._journal.shown(item)
        return new
