"""A sub-agent: one agent of a tree, with its own conversation, session and tasks (B1).

A task begins with a message and ends with a report. The root of a tree is also a sub-agent.

- `node`: its identity, its place in the tree, its state.
- `task`: the work on one task, up to a report.
- `inbox`, `output`, `session_journal`: what reaches it, what it sends, and what is stored.

Here a task begins and ends: its report is checked and stored, and its turn ends with it (B2, B7).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from cfs.errors import CfsError, SessionDeleted, SessionRenamed
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import catalogue
from cfs_agents.guards.report import Finish, Report, ReportStatus
from cfs_agents.loop.retries import is_outage
from cfs_agents.tree.merging import merged, unmerged
from cfs_agents.tree.node import TreeNode, TreeResources
from cfs_agents.tree.record import InboxMessage, SubAgentRecord, SubAgentState, state_of
from cfs_agents.tree.session_backend import ClaimedTurn
from cfs_agents.tree.session_context import SubSessionContext
from cfs_agents.tree.session_folder import SessionFolder
from cfs_agents.tree.task import Claim, SubAgentTask
from cfs_agents.tree.toolset import Toolset

_log = get_logger(__name__)


class FibreSubAgent(TreeNode):
    """One agent of a tree. `run` does one task, or continues the one that was interrupted."""

    def __init__(
        self,
        tree: TreeResources,
        record: SubAgentRecord,
        context: SubSessionContext,
        folder: SessionFolder,
        toolset: "Callable[[FibreSubAgent], Toolset]",
        parent: "FibreSubAgent | None" = None,
    ) -> None:
        super().__init__(tree, record, context, folder, parent)
        self._toolset = toolset
        self._work = self._new_work()
        self._killed: Report | None = None
        """The report of a task that was ended from outside."""

    def _new_work(self) -> SubAgentTask:
        return SubAgentTask(self, lambda: self._toolset(self))

    def prepare(self) -> None:
        """Get ready for a task that is about to be started."""
        self._change(SubAgentState.STARTING)
        self._work, self._killed = self._new_work(), None

    async def run(self, claim: Claim, message: InboxMessage | None = None) -> None:
        """Do a task to its report, or continue it; `claim` gets its turn.

        A `message` begins the task; it leaves the inbox when the turn is claimed.
        """
        self.clock.start(self.record.seconds_used)
        try:
            report = await self._reported(claim, message)
            self._change(SubAgentState.REPORTING)
            await self._end(report)
            self._change(SubAgentState.DONE)
        finally:
            self.record.seconds_used = self.clock.stop()
            await self.output.close()
            await self._work.close()
            self.inbox.wakeup.set()

    async def _reported(self, claim: Claim, message: InboxMessage | None) -> Report:
        """Work to the end of the task, however it ends."""
        if self._killed is not None:
            return self._killed
        try:
            return await self._work.work(claim, message)
        except asyncio.CancelledError:
            if self._killed is None or self.task is None:  # the whole tree stops, to be resumed later
                raise
            self.task.uncancel()
            return self._killed
        except (SessionDeleted, SessionRenamed) as error:
            return Report.by_system(self.agent_id, "cancelled", error.detail)
        except CfsError as error:
            if is_outage(error):
                raise  # the task has not failed, only patience has run out: to be resumed later
            return Report.by_system(self.agent_id, "failed", error.detail)
        except Exception as error:  # noqa: BLE001 - a sub-agent that fails is reported, and the others continue
            _log.exception("sub_agent.failed", session=self.session_id)
            return Report.by_system(self.agent_id, "failed", f"{type(error).__name__}: {error}")

    async def _end(self, report: Report) -> None:
        """Check and store the report, end the turn with it, cancel the agents below, and notify the parent."""
        await self._work.close()
        if self.tree.published is not None:
            await self.tree.published.send()
        report = await self._checked(report)
        if self.record.branch is not None:
            report = await merged(self, report)
        await self._conclude(report)
        await self.end_below()
        await self.notify_parent(report)

    async def _checked(self, report: Report) -> Report:
        """Add the facts to a report: changes by the agent, by agents below it, and those that no agent made.

        Changes by siblings are in their own reports.
        """
        guards = self.guards
        report = replace(report, usage=self.record.usage - self.record.usage_before)
        report = await guards.judge(report, reports=max(1, self._work.finish_calls))
        agents = {None, *self.family()}
        guards.ended(self.agent_id)
        return replace(report, facts=tuple(change for change in report.facts if change.by in agents))

    async def _conclude(self, report: Report) -> None:
        """Store a checked report, and end the turn with it."""
        record, language = self.record, self.tree.config.language
        self._set_report(report)
        record.begun, record.asking, record.finish = [], "", None
        record.seconds_used = self.clock.stop()
        await self.journal.save()
        if self.output.lease is None and not report.ok:
            # Its turn was never claimed: the message must not wait for ever.
            with suppress(CfsError):
                await self.tree.backend.cancel(self.session_id)
        await self.output.finish(report, language)
        record.lease = None
        await self.journal.save()
        self.output.chunk("ended", content=report.summary if self.is_root and report.ok else report.text(language))

    def _set_report(self, report: Report) -> None:
        self.report = report
        self.record.state, self.record.report = "done", state_of(report)
        self.record.report_delivered = self.is_root

    async def lose(self, reason: str) -> None:
        """End its task as failed, because its state cannot be stored. The others of the tree go on."""
        report = self.report
        if report is None or self.record.state != "done":
            report = unmerged(self, Report.by_system(self.agent_id, "failed", reason))
        self._set_report(report)
        self.record.lease = None
        self.guards.ended(self.agent_id)
        with suppress(CfsError):
            await self.tree.backend.cancel(self.session_id)
        self.output.chunk("ended", content=report.text(self.tree.config.language))
        await self.end_below()
        with suppress(CfsError):
            await self.notify_parent(report, ":lost")  # the task may be resumed, and reported again

    async def finish_turn(self, turn: ClaimedTurn | None) -> None:
        """End a turn whose report was stored by a process that was killed then."""
        if turn is not None and self.report is not None:
            self.output.begin(turn)
            await self.output.finish(self.report, self.tree.config.language)
        self.record.lease = None
        await self.journal.save()

    def kill(self, status: ReportStatus, reason: str) -> None:
        """End its task where it waits; from the thread of its event loop. A reporting task ends on its own."""
        over = self._state in (SubAgentState.REPORTING, SubAgentState.DONE)
        if self.task is None or not self.running or over or self._killed is not None:
            return
        self._killed = Report.by_system(self.agent_id, status, reason)
        if self.clock.started:  # else it looks before it begins: a task that is cancelled before that never runs
            self.task.cancel()

    def turn_lost(self, reason: str) -> None:
        """End its task, as its turn on the server was cancelled or taken over."""
        self.kill("cancelled", reason)

    async def end_below(self) -> None:
        """Cancel all agents below it, and wait for their ends."""
        tasks = []
        for agent in self.below():
            agent.kill("cancelled", catalogue(self.tree.config.language).parent_over)
            if agent.task is not None and not agent.task.done():
                tasks.append(agent.task)
        if tasks:
            await asyncio.wait(tasks)

    def take_finish(self, finish: Finish) -> None:
        """Take its own report of the task, which ends when the call has its result."""
        self._work.take_finish(finish)

    def question_of_jobs(self) -> str | None:
        """Return the question whether its task may end while its background jobs run, once."""
        return self._work.question_of_jobs()

    async def notify_parent(self, report: Report, mark: str = "") -> None:
        """Put its report into the inbox of its parent. A `mark` distinguishes it from the one that comes later."""
        if self.parent is not None:
            text = report.text(self.tree.config.language)
            message_id = f"{self.agent_id}:{self.record.tasks}{mark}"
            message = InboxMessage(id=message_id, sender=self.agent_id, content=text, is_notification=True)
            await self.parent.inbox.deliver(message)

    def report_delivered(self) -> None:
        """Take the notification of its report out of its parent's inbox, as the parent has the report."""
        self.record.report_delivered = True
        if self.parent is not None:
            self.parent.inbox.remove_notifications(self.agent_id)
