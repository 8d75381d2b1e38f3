"""How the task of a sub-agent ended, and the report that is made of it (B2, B7)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Self

from cfs.wire import Usage
from cfs_agents.guards.guards import Guards
from cfs_agents.guards.report import Finish, Report, ReportStatus


@dataclass(frozen=True, slots=True)
class Ending:
    """How a task ended as the sub-agent sees it: its own report, and why it is not a success."""

    status: ReportStatus
    finish: Finish
    reasons: tuple[str, ...] = ()

    @classmethod
    def without_report(cls, status: ReportStatus, reason: str) -> Self:
        """Return the ending of a task that the agent itself has not reported on."""
        return cls(status, Finish(status="failed", summary=""), (reason,))

    @classmethod
    def reported(cls, finish: Finish) -> Self:
        """Return the ending of a task by the agent's own report."""
        return cls("success" if finish.status == "success" else "failed", finish)

    async def checked(
        self, agent_id: str, usage: Usage, guards: Guards, *, family: Callable[[], Collection[str]], reports: int
    ) -> Report:
        """Make the report: the agent's claims beside the facts, which are the changes by its `family` and by nobody.

        Changes by siblings are in their own reports. `reports` is how often the agent has reported.
        """
        finish = self.finish
        report = Report(agent_id, self.status, finish.summary, finish.details, (), self.reasons, usage)
        report = await guards.judge(report, reports=max(1, reports))
        own = {None, *family()}
        guards.ended(agent_id)
        return replace(report, facts=tuple(change for change in report.facts if change.by in own))
