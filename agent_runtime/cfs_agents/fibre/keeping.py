"""Keeps what a strand does: on disk first, then in its session, then for whoever reads its chunks (B3, B5, B8)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from cfs.wire import Message, ToolCall, Usage
from cfs_agents.context import Change, Context, ContextItem
from cfs_agents.events import Finished
from cfs_agents.fibre.session_context import SessionContext
from cfs_agents.fibre.state import StrandRecord
from cfs_agents.fibre.storage import SessionFolder
from cfs_agents.file_agent.keeping import to_the_end
from cfs_agents.keeper import NewContext
from cfs_agents.tools.results import ToolResult
from cfs_agents.usage import added

REPEATABLE = frozenset(
    {
        *("sys_spawn_agent", "sys_send_message", "sys_wait_agent", "sys_finish_task", "sys_lock_file"),
        *("sys_unlock_file", "read_file", "write_file", "list_directory", "search_files"),
    }
)
"""Calls that do nothing twice: after a kill in their middle they are just made again."""


class StrandKeeper:
    """Keeps one strand. `told` gets each message that is on disk; `before` is awaited before the model is asked."""

    def __init__(
        self,
        record: StrandRecord,
        context: SessionContext,
        folder: SessionFolder,
        *,
        told: Callable[[Message], None],
        before: Callable[[], Awaitable[None]],
    ) -> None:
        self.record = record
        self.current: Callable[[], Context] | None = None
        self._messages = context.message_manager
        self._memory = context.session_memory_manager
        self._folder = folder
        self._told = told
        self._before = before
        self._saving = asyncio.Lock()
        self._last: str | None = None
        self._untold: list[Message] = []
        """Calls that are written down with their beginning, in one."""

    async def save(self) -> None:
        """Write the strand down as it is now."""
        async with self._saving:
            record = self.record
            record.updated_at = time.time()
            record.messages = len(self._messages)
            if self.current is not None:
                record.items = self._memory.dump(self.current())
            status, messages = record.model_dump_json(), self._messages.messages
            await to_the_end(lambda: self._folder.save(status, messages))

    async def add(self, message: Message) -> None:
        """Keep a message that is in the context already."""
        self._last = None
        self._messages.add(message)
        await self.save()
        self._tell()
        self._told(message)

    # -- what the loop tells --------------------------------------------------------------------------------------

    async def before_round(self) -> None:
        """Let the strand look what has come."""
        await self._before()

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Keep a message of the user or of the model."""
        record = self.record
        record.begun, record.broken = [], dict(broken)
        if usage is not None:
            record.rounds += 1
            record.usage = added(record.usage, usage)
        if item.item_id == self._last:  # the rest of a reply that was cut off
            self._messages.replace_last(item.message)
            await self.save()
            self._told(item.message)
        elif not broken and any(call.name not in REPEATABLE for call in item.message.tool_calls[:1]):
            self._messages.add(item.message)
            self._untold.append(item.message)
        else:
            await self.add(item.message)
        self._last = item.item_id

    async def shortened(self, change: Change) -> None:  # noqa: ARG002 - as the protocol has it
        """Keep what the conversation is now."""
        await self.save()

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Keep that calls are about to be run, if running one of them twice would matter."""
        self.record.begun = [call.id for call in calls]
        if any(call.name not in REPEATABLE for call in calls):
            await self.save()
            self._tell()

    def _tell(self) -> None:
        """Tell what is on disk by now, and was kept from being told before."""
        for message in self._untold:
            self._told(message)
        self._untold.clear()

    async def done(
        self,
        call: ToolCall,
        result: ToolResult,  # noqa: ARG002 - the signature is the protocol's
        item: ContextItem,
        later: Sequence[ToolCall],  # noqa: ARG002
    ) -> NewContext | None:
        """Keep a result."""
        self.record.begun = [each for each in self.record.begun if each != call.id]
        await self.add(item.message)
        return None

    async def ended(self, end: Finished) -> None:
        """Do nothing: what an end means is for the strand to say."""
