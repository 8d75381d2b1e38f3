"""Keeps what a file agent does: in its journal, in its log, and at a sync in its window (A1, A4, A6)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import ClassVar, TypeVar

from cfs.wire import Message, ToolCall, Usage
from cfs_agents.context import Change, Context, ContextItem
from cfs_agents.events import FileChanges, Finished
from cfs_agents.fibre.guards.ledger import Ledger
from cfs_agents.file_agent import sync as syncing
from cfs_agents.file_agent.disk import Disk, disk_errors
from cfs_agents.file_agent.journal import Journal, Story, Sync
from cfs_agents.file_agent.operations import Operation, OperationLog
from cfs_agents.file_agent.prompts import after_sync, system_prompt
from cfs_agents.file_agent.root import HISTORY, LEDGER, OFFLOADED, AgentRoot
from cfs_agents.file_agent.tree import tree
from cfs_agents.keeper import NewContext
from cfs_agents.tools.paths import STORAGE, WORKSPACE
from cfs_agents.tools.results import ToolResult

_T = TypeVar("_T")


class FileKeeper:
    """Keeps all of an agent's state in its directory. It blocks in threads; one step at a time.

    `warn` is told in a sentence when the disk becomes full.
    """

    def __init__(
        self, root: AgentRoot, journal: Journal, log: OperationLog, sync: syncing.SyncTool, warn: Callable[[str], None]
    ) -> None:
        self._root = root
        self._journal = journal
        self._log = log
        self._sync = sync
        self._disk = Disk(root.path)
        self._warn = warn

    # -- at the start ---------------------------------------------------------------------------------------------

    def recall(self) -> Story:
        """Read what was kept, and repair what a crash has left between two steps of it. Blocks."""
        story = self._journal.read()
        if story.sync is not None:
            self._complete(story.sync)
            story = self._journal.read()
        if story.last is not None and story.last.id not in self._log:
            self._log.write(story.last)
        return story

    def system(self) -> Message:
        """Build the system prompt from the files as they are now. Blocks."""
        language = self._root.language
        text = system_prompt(self._root.guideline(), self._root.window(), tree(self._root.path), language)
        return Message(role="system", content=text)

    # -- what the loop tells --------------------------------------------------------------------------------------

    async def before_round(self) -> None:
        """Look whether the disk has room for what is to come; that takes microseconds, so no thread."""
        if warning := self._disk.check():
            self._warn(warning)

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Keep a message; a task is logged, and what a reply has cost."""
        await to_the_end(lambda: self._add(item, broken, usage))

    def _add(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        place = self._journal.place()
        self._journal.item(item, broken)
        if usage is None:
            self._log.write(Operation(place, "task", {"text": item.message.content}, "taken", success=True))
        else:
            cost = usage.model_dump(include={"prompt_tokens", "cached_tokens", "completion_tokens"})
            self._log.write(Operation(place, "model", cost, "replied", success=True))

    async def shortened(self, change: Change) -> None:
        """Keep what has become of the conversation."""
        await to_the_end(lambda: self._journal.change(change))

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Keep the intents."""
        await to_the_end(lambda: self._journal.intents(calls))

    async def done(
        self, call: ToolCall, result: ToolResult, item: ContextItem, later: Sequence[ToolCall]
    ) -> NewContext | None:
        """Keep the result, and log it; a sync changes the window, and with it the conversation."""
        window = self._sync.take() if call.name == syncing.NAME and result.ok else None
        operation = Operation(self._journal.place(), call.name, call.arguments, result.text, success=result.ok)
        if window is not None:
            return await to_the_end(lambda: self._change(window, operation, [each.name for each in later]))

        def keep() -> None:
            self._journal.result(item, operation)
            self._log.write(operation)

        await to_the_end(keep)
        return None

    async def ended(self, end: Finished) -> None:
        """Keep how the task ended."""

        def keep() -> None:
            place = self._journal.place()
            self._journal.end(end)
            said = f"{end.reason}: {end.detail}" if end.detail else end.reason
            self._log.write(Operation(place, "task_ended", {}, said, success=end.reason == "answered"))

        await to_the_end(keep)

    # -- the change of windows ------------------------------------------------------------------------------------

    def _change(self, window: str, operation: Operation, dropped: Sequence[str]) -> NewContext:
        note = Message(role="user", content=after_sync(self._root.language, dropped))
        sync = Sync(window, syncing.archive_path(), ContextItem.of(note, protected=True), operation)
        self._journal.sync(sync)
        self._complete(sync)
        items = (ContextItem.of(self.system()), sync.item)
        return NewContext(Context(items), len(window.splitlines()))

    def _complete(self, sync: Sync) -> None:
        """Do what a sync means; each step may have been done before, by whoever was killed in the middle."""
        self._root.archive_window(sync.archive)
        self._root.write_window(sync.window)
        if sync.operation.id not in self._log:
            self._log.write(sync.operation)
        self._journal.restart(sync.item)


class RootWatch:
    """Watches what an agent, its commands and others do to the files of its workspace and its storage.

    What was there when the task began is on disk, so another process goes on with it.
    """

    _AGENT = "agent"
    _PLACES: ClassVar[Mapping[str, str]] = {f"{WORKSPACE}/": "workspace/", f"{STORAGE}/": "storage/"}

    def __init__(self, root: AgentRoot) -> None:
        self._root = root
        apart = (HISTORY[1:], OFFLOADED[1:])  # the runtime's own
        folders = ("workspace", "storage")
        self._ledger = Ledger(root.path, root.path / LEDGER, only=folders, apart=apart, contents=False)

    def ensure(self) -> None:
        """Begin here with a task that was begun by a version which did not watch. Blocks."""
        with disk_errors(self._root.path):
            self._ledger.mark(self._AGENT, again=False)

    async def begin(self) -> None:
        """A task begins."""
        await self._off_the_loop(lambda: self._ledger.restart(self._AGENT))

    async def changes(self) -> FileChanges:
        """Return what is not as it was when the task began."""
        return await self._off_the_loop(self._changes)

    async def unmade(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of some files that were neither created nor changed since the task began."""
        if not names:
            return ()
        places = {
            **self._PLACES,
            f"{self._root.path}/workspace/": "workspace/",
            f"{self._root.path}/storage/": "storage/",
        }
        return await self._off_the_loop(lambda: self._ledger.unmade(self._AGENT, names, places))

    def _changes(self) -> FileChanges:
        kinds: dict[str, list[str]] = {"created": [], "changed": [], "deleted": []}
        for change in self._ledger.since(self._AGENT):
            kinds[change.kind].append(f"/{change.path}")
        return FileChanges(**{kind: tuple(paths) for kind, paths in kinds.items()})

    async def _off_the_loop(self, work: Callable[[], _T]) -> _T:
        def with_errors() -> _T:
            with disk_errors(self._root.path):
                return work()

        return await to_the_end(with_errors)


async def to_the_end(work: Callable[[], _T]) -> _T:
    """Do blocking work in a thread; a cancellation waits for its end, so that nothing is left half known."""
    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
