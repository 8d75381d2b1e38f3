"""A node of a tree of agents: who a sub-agent is, where it is in the tree, and in which state (B1)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from cfs.wire import AgentWork, BudgetUse, PlanStep
from cfs_agents.guards.guards import Guards
from cfs_agents.loop.model import Model
from cfs_agents.tools import CALL_ID
from cfs_agents.tree.branches import Branches, BranchFiles
from cfs_agents.tree.clock import WorkClock
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.inbox import Inbox
from cfs_agents.tree.output import ChunkQueue, TurnOutput
from cfs_agents.tree.published import PublishedWorkspace
from cfs_agents.tree.record import TRANSITIONS, SubAgentRecord, SubAgentState, report_of, state_at_rest
from cfs_agents.tree.session_backend import SessionBackend
from cfs_agents.tree.session_context import SubSessionContext
from cfs_agents.tree.session_folder import SessionFolder
from cfs_agents.tree.session_journal import SessionJournal


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeResources:
    """The resources that all agents of a tree share. `models` returns the model for an agent's name.

    `published` is the workspace on the server, if there is one. `folder` names the one that they work on if it is
    elsewhere and not published. `branches` are the copies of the files.
    """

    config: FibreConfig
    backend: SessionBackend
    chunks: ChunkQueue
    guards: Guards
    models: Callable[[str], Model]
    published: PublishedWorkspace | None
    folder: str | None
    branches: Branches


class TreeNode:
    """One agent of a tree, whether it works or not: its record, its relatives, its state, and its session."""

    def __init__(
        self,
        tree: TreeResources,
        record: SubAgentRecord,
        context: SubSessionContext,
        folder: SessionFolder,
        parent: Self | None = None,
    ) -> None:
        self.tree = tree
        self.record = record
        self.context = context
        self.folder = folder
        self.parent = parent
        self.guards: Guards = tree.guards if parent is None else parent.guards
        """The guards of the files that it works on."""
        self.children: list[Self] = []
        if parent is not None:
            parent.children.append(self)
        language = tree.config.language
        self.output = TurnOutput(tree.chunks, record.session_id, record.agent_name)
        self.journal = SessionJournal(record, context, folder, stored=self.output.message, language=language)
        self.inbox = Inbox(record, self.journal, self.output, tree.backend, self.turn_lost, language)
        self.task: asyncio.Task[None] | None = None
        self.report = report_of(record)
        self.clock = WorkClock(lambda: tree.backend.away)
        self._state = state_at_rest(record)
        self._waits = 0
        self._work_reported = AgentWork()

    @property
    def agent_id(self) -> str:
        """Its name, unique in the tree."""
        return self.record.agent_id

    @property
    def session_id(self) -> str:
        """The id of its session, which names all agents above it."""
        return self.record.session_id

    @property
    def root(self) -> "TreeNode":
        """The first agent of the tree."""
        return self if self.parent is None else self.parent.root

    @property
    def is_root(self) -> bool:
        """Whether it is the first agent of the tree."""
        return self.parent is None

    @property
    def owner(self) -> Self:
        """The agent whose files it works on: itself if they are a copy of its own, or one above it."""
        return self if self.parent is None or self.record.branch is not None else self.parent.owner

    @property
    def branch_files(self) -> BranchFiles:
        """The files that it works on."""
        return BranchFiles(self.owner.agent_id, self.context.agent_workspace, self.guards.ledger)

    @property
    def state(self) -> SubAgentState:
        """The current state."""
        return self._state

    @property
    def running(self) -> bool:
        """Whether its task runs in this process."""
        return self.task is not None and not self.task.done()

    @property
    def busy(self) -> bool:
        """Whether it has a task that is not done."""
        return self.running or self._state is not SubAgentState.DONE

    @property
    def may_spawn(self) -> bool:
        """Whether it may have children."""
        return self.record.depth < self.tree.config.max_depth

    def below(self) -> Iterator[Self]:
        """Yield all agents below it, each before its own children."""
        for child in self.children:
            yield child
            yield from child.below()

    def family(self) -> set[str]:
        """Return the ids of this agent and of all agents below it."""
        return {self.agent_id, *(child.agent_id for child in self.below())}

    def turn_lost(self, reason: str) -> None:
        """End its task, as its turn on the server was cancelled or taken over."""
        raise NotImplementedError

    def report_work(self, **changes: Any) -> None:
        """Say in its session what has changed of its plan, its jobs or its budget (see `AgentWork`)."""
        work = AgentWork.model_validate(dict(self._work_reported) | changes)
        if work != self._work_reported:
            self._work_reported = work
            self.output.work(work)

    def begin_work(self, budget: BudgetUse | None) -> None:
        """Say at the beginning of a task, or when it goes on, what the plan and the budget are, and where it works."""
        self._work_reported = AgentWork(plan=tuple(self.record.plan), budget=budget, folder=self.tree.folder)
        self.output.work(self._work_reported)

    def plan_changed(self, steps: Sequence[PlanStep]) -> None:
        """Store the agent's new plan with its next step, and say it in its session."""
        self.record.plan = list(steps)
        self.report_work(plan=tuple(steps))

    def _change(self, state: SubAgentState) -> None:
        """Change the state; only this method does. Raises `RuntimeError` if the table does not allow the change."""
        if state is self._state:
            return
        if state not in TRANSITIONS[self._state]:
            raise RuntimeError(f"{self.session_id} cannot go from {self._state} to {state}")
        self._state = state

    def turn_claimed(self) -> None:
        """Go to work: the turn of its task is claimed."""
        self._change(SubAgentState.WORKING)

    def rest(self) -> None:
        """Return to rest, as its task has ended, was interrupted, or had no turn to claim."""
        self._change(state_at_rest(self.record))

    @asynccontextmanager
    async def waiting(self, *, counts: bool = True) -> AsyncIterator[None]:
        """Wait in this block; the time counts for the agent only if `counts`."""
        self._waits += 1
        if self._state is SubAgentState.WORKING:
            self._change(SubAgentState.WAITING)
        try:
            if counts:
                yield
            else:
                with self.clock.suspended():
                    yield
        finally:
            self._waits -= 1
            if not self._waits and self._state is SubAgentState.WAITING:
                self._change(SubAgentState.WORKING)

    @property
    def present_call(self) -> str:
        """The id of the present call, the same after a kill: its message's index in the session, and its id."""
        messages = self.context.message_manager.messages
        index = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].tool_calls), 0)
        return f"{index}:{CALL_ID.get()}"

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Store that the present call waits for a person in this block, so that nothing of it has happened."""
        self.record.asking = CALL_ID.get()
        await self.journal.save()
        try:
            yield
        except asyncio.CancelledError:
            raise  # it still has not happened
        except BaseException:
            self.record.asking = ""
            raise
        self.record.asking = ""
        await self.journal.save()
