"""The journal of a file-system agent: run log, operation log, and the window, which has the plan (A1, A4, A6)."""

from collections.abc import Callable, Mapping, Sequence

from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.disk import disk_errors
from cfs_agents.base.events import Finished, ToolResult
from cfs_agents.base.messages import after_sync
from cfs_agents.base.threads import to_the_end
from cfs_agents.context import ContextItem, Conversation, ConversationChange
from cfs_agents.loop.recorder import NewContext
from cfs_agents.tools.plan import UPDATE_PLAN, Plan, plan_in, with_plan
from cfs_agents.tree.directory import AgentRoot
from cfs_agents.tree.listing import tree
from cfs_agents.tree.operations import Operation, OperationLogger
from cfs_agents.tree.prompts import file_agent_prompt
from cfs_agents.tree.run_log import RunLog, RunState, Sync
from cfs_agents.tree.sync import ContextSynchronizer, archive_path
from cfs_agents.tree.tool_names import SYNC_CONTEXT


class WindowJournal:
    """Stores the state of an agent in its directory, one step at a time; blocking work runs in threads."""

    def __init__(
        self,
        root: AgentRoot,
        run_log: RunLog,
        log: OperationLogger,
        sync: ContextSynchronizer,
        project: Callable[[], str] = str,
        plan: Plan | None = None,
    ) -> None:
        self._root = root
        self._run_log = run_log
        self._log = log
        self._sync = sync
        self._project = project
        self._plan = plan or Plan()

    def recall(self) -> RunState:
        """Read the stored state and complete what a crash interrupted. Blocks."""
        state = self._run_log.read()
        if state.sync is not None:
            self._complete(state.sync)
            state = self._run_log.read()
        self._plan.steps = plan_in(self._root.window())
        if state.last is not None and state.last.id not in self._log:
            self._log.write(state.last)
        return state

    def system(self) -> Message:
        """Build the system prompt from the present files. Blocks."""
        language = self._root.language
        root = self._root
        with disk_errors(root.path):
            root.complete()
        files, project = tree(root.folders, root.ignored), self._project()
        text = file_agent_prompt(root.guideline(), root.window(), files, language, root.context_window, project=project)
        return Message(role="system", content=text)

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Store a message; log a task, and the usage of a reply."""
        await to_the_end(lambda: self._add(item, broken, usage))

    def _add(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        position = self._run_log.position()
        self._run_log.item(item, broken)
        if usage is None:
            self._log.write(Operation(position, "task", {"text": item.message.content}, "taken", success=True))
        else:
            cost = usage.model_dump(include={"prompt_tokens", "cached_tokens", "completion_tokens"})
            self._log.write(Operation(position, "model", cost, "replied", success=True))

    async def shortened(self, change: ConversationChange) -> None:
        """Store a change of the conversation."""
        await to_the_end(lambda: self._run_log.change(change))

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Store which calls are about to run."""
        await to_the_end(lambda: self._run_log.intents(calls))

    async def done(
        self, call: ToolCall, result: ToolResult, item: ContextItem, later: Sequence[ToolCall]
    ) -> NewContext | None:
        """Store and log a result; a plan is a part of the window, and a sync changes it and the conversation."""
        window = self._sync.take() if call.name == SYNC_CONTEXT and result.ok else None
        operation = Operation(self._run_log.position(), call.name, call.arguments, result.text, success=result.ok)
        if window is not None:
            return await to_the_end(lambda: self._change(window, operation, [call.name for call in later]))

        def keep() -> None:
            if call.name == UPDATE_PLAN and result.ok:
                self._root.write_window(with_plan(self._root.window(), self._plan.steps, self._root.language))
            self._run_log.result(item, operation)
            self._log.write(operation)

        await to_the_end(keep)
        return None

    def shown(self, item: ContextItem) -> None:
        """Do nothing: no one else sees the conversation."""

    async def ended(self, end: Finished) -> None:
        """Store and log how the task ended."""

        def keep() -> None:
            position = self._run_log.position()
            self._run_log.end(end)
            text = f"{end.reason}: {end.detail}" if end.detail else end.reason
            self._log.write(Operation(position, "task_ended", {}, text, success=end.reason == "answered"))

        await to_the_end(keep)

    def _change(self, window: str, operation: Operation, dropped: Sequence[str]) -> NewContext:
        if steps := plan_in(window):
            self._plan.steps = steps
        elif self._plan.steps:
            window = with_plan(window, self._plan.steps, self._root.language)
        note = Message(role="user", content=after_sync(self._root.language, dropped))
        sync = Sync(window, archive_path(), ContextItem.of(note, protected=True), operation)
        self._run_log.sync(sync)
        self._complete(sync)
        items = (ContextItem.of(self.system()), sync.item)
        return NewContext(Conversation(items), len(window.splitlines()))

    def _complete(self, sync: Sync) -> None:
        """Carry out a sync. After a kill it is repeated, so each step may have been done before."""
        self._root.archive_window(sync.archive)
        self._root.write_window(sync.window)
        if sync.operation.id not in self._log:
            self._log.write(sync.operation)
        self._run_log.restart(sync.item)
