"""The orchestrator: starts all sub-agents of a tree, routes their messages, and ends them (B1, B8).

All sub-agents start in one task group. When `run` returns or raises, all of them have ended.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from cfs.api import acting_as
from cfs.errors import CfsError, Conflict, StorageFull
from cfs_agents.base.disk import DiskError
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import catalogue
from cfs_agents.base.threads import to_the_end
from cfs_agents.guards.guards import Guards
from cfs_agents.guards.ledger import LEDGER
from cfs_agents.guards.limits import TreeLimits, check_attempts
from cfs_agents.loop.model import Model
from cfs_agents.loop.retries import is_outage
from cfs_agents.tools import Consent, Reaper, ToolError
from cfs_agents.tree.branches import Branches
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.folder import TreeFolder
from cfs_agents.tree.given_workspace import shown
from cfs_agents.tree.loading import StoredAgent, load_root, load_sub_agents
from cfs_agents.tree.merging import finish_merge
from cfs_agents.tree.node import TreeResources
from cfs_agents.tree.output import ChunkQueue
from cfs_agents.tree.published import PublishedWorkspace
from cfs_agents.tree.record import BranchRecord, InboxMessage, SubAgentRecord, SubAgentState
from cfs_agents.tree.session_backend import ClaimedTurn, SessionBackend
from cfs_agents.tree.session_context import AgentSpec, SubSessionContext
from cfs_agents.tree.session_journal import SessionJournal
from cfs_agents.tree.sub_agent import FibreSubAgent
from cfs_agents.tree.task import Claim
from cfs_agents.tree.toolset import Toolset

_log = get_logger(__name__)

Models: TypeAlias = Callable[[str], Model]
"""Returns the model that answers for an agent, by the agent's name."""

BuildToolset: TypeAlias = "Callable[[FibreOrchestrator, FibreSubAgent], Toolset]"
"""Makes the tools of a sub-agent."""


class FibreOrchestrator:
    """All sub-agents of one tree. `load` them, then `run` one task of the root at a time. The constructor blocks."""

    def __init__(
        self,
        folder: TreeFolder,
        models: Models,
        config: FibreConfig,
        backend: SessionBackend,
        chunks: ChunkQueue,
        toolset: BuildToolset,
        publish: Callable[[Guards], PublishedWorkspace | None],
    ) -> None:
        self.config = config
        self.backend = backend
        self.sub_agents: dict[str, FibreSubAgent] = {}
        """By their ids, parents first."""
        self.lost: set[str] = set()
        """Ids of sub-agents whose files were damaged, until their parents have been notified."""
        self.shell_home = folder.shell_home(config.commands)
        self.reaper = Reaper()
        """Ends the processes of all shells of the tree."""
        self.guards = Guards(
            folder.workspace,
            folder.path / LEDGER,
            ignored=folder.ignored,
            limits=TreeLimits(config.max_depth, config.max_alive, config.max_agents),
            lock_seconds=config.lock_seconds,
            cost=config.tree_cost,
            language=config.language,
            warn=folder.warn,
            expected=folder.is_begun,
        )
        self.consent = Consent(config.ask)
        self.branches = Branches(folder)
        published = publish(self.guards)
        self._resources = TreeResources(
            config=config,
            backend=backend,
            chunks=chunks,
            guards=self.guards,
            models=models,
            published=published,
            folder=None if published is not None or folder.has_own_workspace else shown(folder.workspace),
            branches=self.branches,
        )
        self._toolset = partial(toolset, self)
        self._folder = folder
        self._journals: dict[str, SessionJournal] = {}
        self._group: asyncio.TaskGroup | None = None
        backend.attach(self._journals, self._message_waits, self._session_deleted)

    def load(self, fresh: SubAgentRecord, context: SubSessionContext) -> None:
        """Load the sub-agents that are on disk; the root is `fresh` when there are none. Blocks."""
        root = load_root(self._folder, fresh, context)
        self._add(root)
        others = load_sub_agents(
            self._folder, root, lambda agent_id: self.sub_agents[agent_id].context, self.config.language
        )
        for stored, lost in others:
            sub_agent = self._add(stored)
            if lost:
                self.lost.add(sub_agent.agent_id)

    def _add(self, stored: StoredAgent) -> FibreSubAgent:
        record, context, folder = stored
        parent = self.sub_agents[record.parent_id] if record.parent_id is not None else None
        sub_agent = self.sub_agents[record.agent_id] = FibreSubAgent(
            self._resources, record, context, folder, self._toolset, parent
        )
        if record.branch is not None:
            if self.branches.exists(record.agent_id):
                self._isolate(sub_agent)
            else:
                folder.warn(f"the files of {record.agent_id} are missing: it works on those of its parent")
                record.branch = None
        self._journals[record.session_id] = sub_agent.journal
        self.guards.budget.open(record.agent_id, record.parent_id, record.budget, record.usage.tokens)
        self._open_costs(record)
        return sub_agent

    def _isolate(self, sub_agent: FibreSubAgent) -> None:
        """Let a sub-agent, and those below it, work on the copy of the files that it has. Blocks."""
        agent_id, folder, record = sub_agent.agent_id, sub_agent.folder, sub_agent.record
        path, files = self.branches.path_of(agent_id), self.branches.handle(agent_id, sub_agent.context.files)
        sub_agent.context = replace(sub_agent.context, agent_workspace=path, files=files)
        begun = record.tasks > 0
        sub_agent.guards = self.guards.for_branch(path, folder.path / LEDGER, warn=folder.warn, expected=begun)

    def _open_costs(self, record: SubAgentRecord) -> None:
        """Count what an agent has spent in earlier processes. A request that a kill has interrupted counts in full."""
        record.cost, record.cost_reserved = record.cost + record.cost_reserved, 0.0
        self.guards.money.spent += record.cost
        if record.parent_id is None:
            self.guards.money.before = record.cost_before

    def _remove(self, sub_agent: FibreSubAgent) -> None:
        """Undo `_add` for an agent that was never started."""
        del self.sub_agents[sub_agent.agent_id], self._journals[sub_agent.session_id]
        if sub_agent.parent is not None:
            sub_agent.parent.children.remove(sub_agent)

    @property
    def root(self) -> FibreSubAgent:
        """The first agent of the tree."""
        return next(iter(self.sub_agents.values()))

    @property
    def unfinished(self) -> bool:
        """Whether work was interrupted that `run` would resume."""
        return any(agent.record.unfinished for agent in self.sub_agents.values())

    async def run(self, claim: Claim | None = None) -> None:
        """Do the task of the root whose turn `claim` gets, and resume all interrupted work."""
        published = self._resources.published
        publishing = published.kept_equal(self.config.publish_seconds) if published is not None else nullcontext()
        await self.finish_merges()
        async with publishing, asyncio.TaskGroup() as group:  # first equal: what is fetched is no work of an agent
            self._group = group
            helpers = [group.create_task(self._ticking()), group.create_task(self._watching())]
            try:
                if claim is not None:
                    self._start(self.root, claim)
                for sub_agent in list(self.sub_agents.values()):
                    if claim is None or not sub_agent.is_root:
                        await self._resume(sub_agent)
                if self.root.task is not None:
                    await asyncio.wait([self.root.task])
                await self.root.end_below()
            finally:
                self._group = None
                for helper in helpers:
                    helper.cancel()

    async def finish_merges(self) -> None:
        """Carry out the merges that a kill or a full disk has interrupted, as far as the disk lets them."""
        for sub_agent in self.sub_agents.values():
            try:
                await finish_merge(sub_agent)
            except (DiskError, StorageFull) as error:  # its next report says it
                _log.warning("fibre.not_merged", session=sub_agent.session_id, reason=error.detail)

    async def fetch_files(self) -> None:
        """Make the workspace equal to the one on the server, between two tasks."""
        if (published := self._resources.published) is not None:
            await published.both()

    @property
    def _at_work(self) -> bool:
        """Whether the root has a task that is not at its end."""
        over = self.root.state in (SubAgentState.REPORTING, SubAgentState.DONE)
        return self._group is not None and self.root.running and not over

    async def _resume(self, sub_agent: FibreSubAgent) -> None:
        """Start a sub-agent that was interrupted, or that has a message in its inbox."""
        record = sub_agent.record
        if record.state == "done" and not record.report_delivered and sub_agent.report is not None:
            await sub_agent.notify_parent(sub_agent.report)
        if record.state == "new":
            self._start(sub_agent, self._first_turn(sub_agent))
        elif record.state == "working":
            self._start(sub_agent, self._interrupted_turn(sub_agent))
        elif record.lease is not None:
            self._finish_turn(sub_agent)
        else:
            self.wake(sub_agent)
        if sub_agent.agent_id in self.lost:
            self.lost.discard(sub_agent.agent_id)
            with suppress(CfsError):  # its turn must not wait for ever
                await self.backend.cancel(sub_agent.session_id)
        if sub_agent.parent is not None and not self._open_above(sub_agent, sub_agent.parent):
            sub_agent.kill("cancelled", catalogue(self.config.language).parent_over)

    def _open_above(self, sub_agent: FibreSubAgent, parent: FibreSubAgent) -> bool:
        """Whether a sub-agent may work: its parent does, or it had reported and was then given another task."""
        return self._at_work and (parent.busy or sub_agent.record.tasks > 1)

    def _first_turn(self, sub_agent: FibreSubAgent) -> Claim:
        record = sub_agent.record

        async def claim() -> ClaimedTurn | None:
            with acting_as(record.parent_session_id, (record.spawned_by or "").partition(":")[2]):
                await self.backend.open(sub_agent.session_id)
                return await self.backend.begin(sub_agent.session_id, record.task_goal, sub_agent.turn_lost)

        return claim

    def _interrupted_turn(self, sub_agent: FibreSubAgent) -> Claim:
        lease = sub_agent.record.lease
        if lease is None:
            goal = sub_agent.record.task_goal
            return lambda: self.backend.begin(sub_agent.session_id, goal, sub_agent.turn_lost)
        sent = sub_agent.journal.messages_of_turn()
        return lambda: self.backend.resume(sub_agent.session_id, lease, sent, sub_agent.turn_lost)

    def _start(
        self, sub_agent: FibreSubAgent, claim: Claim, message: InboxMessage | None = None, *, may_be_gone: bool = False
    ) -> None:
        """Start a sub-agent. With `may_be_gone` it returns to rest if there is no turn to claim."""
        sub_agent.prepare()
        self._create_task(sub_agent, self._life(sub_agent, claim, message, may_be_gone=may_be_gone))

    def _finish_turn(self, sub_agent: FibreSubAgent) -> None:
        """End the turn of a sub-agent whose report is stored."""
        self._create_task(sub_agent, self._finishing(sub_agent, self._interrupted_turn(sub_agent)))

    def _create_task(self, sub_agent: FibreSubAgent, life: Coroutine[Any, Any, None]) -> None:
        """Run a sub-agent; only this method does."""
        assert self._group is not None  # noqa: S101 - nothing is started when no task of the root is under way
        with acting_as(sub_agent.session_id, ""):
            sub_agent.task = self._group.create_task(life, name=sub_agent.session_id)
        sub_agent.task.add_done_callback(lambda _: self._ended(sub_agent))

    async def _finishing(self, sub_agent: FibreSubAgent, claim: Claim) -> None:
        try:
            turn = await claim()
            if turn is not None and not turn.resumed:  # its turn had ended before the kill: this is the next message
                sub_agent.record.lease = None
                sub_agent.prepare()
                await self._life(sub_agent, ready(turn), None, may_be_gone=False)
                return
            await sub_agent.finish_turn(turn)
        except CfsError as error:
            if is_outage(error):
                raise
            _log.warning("sub_agent.turn_not_finished", session=sub_agent.session_id, reason=error.detail)
            await sub_agent.finish_turn(None)

    async def _life(
        self, sub_agent: FibreSubAgent, claim: Claim, message: InboxMessage | None, *, may_be_gone: bool
    ) -> None:
        try:
            if may_be_gone:
                turn = await claim()
                if turn is None:
                    return
                claim = ready(turn)
            await sub_agent.run(claim, message)
        except CfsError as error:  # the state cannot be stored, for example because the disk is full
            if is_outage(error) or (sub_agent.is_root and isinstance(error, DiskError)):
                raise  # which ends the whole tree, to be resumed later
            _log.error("sub_agent.lost", session=sub_agent.session_id, reason=error.detail)
            await sub_agent.lose(error.detail)
        finally:
            sub_agent.rest()
        if not sub_agent.is_root:
            sub_agent.task = None
            self.wake(sub_agent)

    def _ended(self, sub_agent: FibreSubAgent) -> None:
        """Wake those above a sub-agent that has ended: they may wait for it."""
        if not sub_agent.running:
            sub_agent.rest()
        above = sub_agent.parent
        while above is not None:
            above.inbox.wakeup.set()
            above = above.parent

    async def _watching(self) -> None:
        try:
            await self.backend.watch(self.root.session_id)
        except CfsError as error:  # the sub-agents learn of cancelled turns at their next requests
            _log.warning("fibre.not_watching", reason=error.detail)

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick_seconds)
            self.tick()

    def tick(self) -> None:
        """End the sub-agents whose time is up."""
        say = catalogue(self.config.language)
        for sub_agent in self.sub_agents.values():
            limit = sub_agent.record.timeout
            late = sub_agent.running and limit is not None and sub_agent.clock.seconds > limit
            if late and limit is not None and not self.backend.paused(sub_agent.session_id):
                sub_agent.kill("failed", say.too_long.format(limit))

    async def create_sub_session(self, parent_context: SubSessionContext, agent_config: AgentSpec) -> FibreSubAgent:
        """Make a sub-agent below the one that has this context; it takes its name at once (B1, B4)."""
        parent = next(agent for agent in self.sub_agents.values() if agent.context is parent_context)
        if agent_config.name in self.sub_agents:
            raise Conflict(f"there is an agent called {agent_config.name!r} already")
        context = parent_context.child(agent_config, list(self.sub_agents))
        record = SubAgentRecord(
            session_id=context.session_id,
            agent_id=agent_config.name,
            agent_name=agent_config.name,
            requested_name=agent_config.requested_name or agent_config.name,
            parent_id=parent.agent_id,
            parent_session_id=parent.session_id,
            depth=parent.record.depth + 1,
            role_description=agent_config.role_description,
            system_instruction=agent_config.system_instruction,
            task_goal=agent_config.task_goal,
            max_turns=agent_config.max_turns,
            timeout=agent_config.timeout,
            budget=agent_config.budget,
            created_at=time.time(),
        )
        return self._add((record, context, self._folder.sub(agent_config.name)))

    async def spawn(self, parent: FibreSubAgent, spec: AgentSpec, spawned_by: str) -> FibreSubAgent:
        """Make a child and start it. `spawned_by` names the call. Raises `ToolError` if a limit forbids it."""
        if not self._at_work:
            raise ToolError("the work is at its end: no agent is started any more")
        below = [agent for agent in self.sub_agents.values() if not agent.is_root]
        order = self.root.record.tasks
        self.guards.limits.check_spawn(
            depth=parent.record.depth + 1,
            alive=sum(agent.busy for agent in below),
            total=sum(agent.record.order == order for agent in below),
            language=self.config.language,
        )
        siblings = [agent for agent in parent.children if agent.record.order == order and agent.report is not None]
        outcomes = [(agent.record.task_goal, agent.report.ok) for agent in siblings if agent.report is not None]
        check_attempts(spec.task_goal, outcomes, self.config.language)
        child = await self.create_sub_session(parent.context, spec)
        child.record.spawned_by, child.record.order = spawned_by, order
        try:
            if spec.isolated:
                await to_the_end(partial(self._branch_off, parent, child))
            await child.journal.save()
        except BaseException:
            self._remove(child)
            raise
        self._start(child, self._first_turn(child))
        return child

    def _branch_off(self, parent: FibreSubAgent, child: FibreSubAgent) -> None:
        self.branches.make(parent.branch_files, child.agent_id)
        child.record.branch = BranchRecord()
        self._isolate(child)

    def wake(self, sub_agent: FibreSubAgent) -> None:
        """Start an idle sub-agent on the first message in its inbox. Notifications can wait."""
        message = next((entry for entry in sub_agent.record.inbox if not entry.is_notification), None)
        if message is None or sub_agent.busy or not self._at_work:
            return
        text = catalogue(self.config.language).inbox_message.format(message.sender, message.content)
        sender = self.sub_agents.get(message.sender)

        async def claim() -> ClaimedTurn:
            author = ("", "") if sender is None else (sender.session_id, message.id.rpartition(":")[2])
            with acting_as(*author):
                return await self.backend.begin(sub_agent.session_id, text, sub_agent.turn_lost)

        self._start(sub_agent, claim, message)

    def cancel(self, agent_id: str) -> None:
        """End the task of an agent, and with it those of the agents below it."""
        self.sub_agents[agent_id].kill("cancelled", catalogue(self.config.language).stopped)

    def _message_waits(self, session_id: str) -> None:
        """Handle a message to a session: wake its agent, or the agent reads the message at its next step."""
        sub_agent = self._of_session(session_id)
        if sub_agent is None:
            return
        sub_agent.inbox.wakeup.set()
        if self._at_work and not sub_agent.busy:
            claim: Claim = partial(self.backend.next, session_id, sub_agent.turn_lost)
            self._start(sub_agent, claim, may_be_gone=True)

    def _session_deleted(self, session_id: str, reason: str) -> None:
        """A session was deleted or renamed: end the task of its agent."""
        if (sub_agent := self._of_session(session_id)) is not None:
            sub_agent.kill("cancelled", reason)

    def _of_session(self, session_id: str) -> FibreSubAgent | None:
        return next((agent for agent in self.sub_agents.values() if agent.session_id == session_id), None)


def ready(turn: ClaimedTurn) -> Claim:
    """Return a claim for a turn that is claimed already."""

    async def claim() -> ClaimedTurn:
        return turn

    return claim
