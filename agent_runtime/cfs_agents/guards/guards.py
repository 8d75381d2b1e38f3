"""All guards of one tree: what an agent does passes them (B7). Only the ledger survives a kill."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfs.wire import Usage
from cfs_agents.base.disk import disk_errors
from cfs_agents.base.events import FileChanges
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.base.repairs import Warn
from cfs_agents.context import ContextItem, Conversation
from cfs_agents.guards.budget import TreeBudget
from cfs_agents.guards.claims import check_claims
from cfs_agents.guards.digest import WAIT, digested
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.guards.limits import TreeLimits
from cfs_agents.guards.locks import Locks
from cfs_agents.guards.money import MoneyBudget
from cfs_agents.guards.report import ChangedFile, Gap, Report
from cfs_agents.guards.stale_writes import StaleWrites
from cfs_agents.guards.watch import TaskWatch
from cfs_agents.loop.claims import named_files
from cfs_agents.tools import Tool
from cfs_agents.tools.ignored import IgnoredFiles
from cfs_agents.tools.paths import WORKSPACE

_log = get_logger(__name__)


LONG_CONTEXT = 800
"""Tokens of a conversation above which older reports are shortened to one line each."""


class Guards:
    """The guards of the tree whose shared files are in `workspace`; `ledger` is where their ledger is kept.

    `ignored` are the files of the workspace that its agents do not look at. `cost` is the budget in US dollars. Use it
    from the event loop; the disk is read in threads. `warn` gets a sentence for each repair of the ledger, also where
    an `expected` one is missing.
    """

    def __init__(
        self,
        workspace: Path,
        ledger: Path | None = None,
        *,
        ignored: IgnoredFiles | None = None,
        limits: TreeLimits | None = None,
        lock_seconds: float = 120.0,
        cost: float | None = None,
        language: Language = "en",
        warn: Warn = _log.warning,
        expected: bool = False,
    ) -> None:
        self.ignored = ignored
        self.limits = limits or TreeLimits()
        self.locks = Locks(lock_seconds, language=language)
        self.budget = TreeBudget(language)
        self.money = MoneyBudget(cost, language)
        with disk_errors(workspace):
            self.ledger = ChangeLog(workspace, ledger, ignored=ignored, warn=warn, expected=expected)
        self._watch = TaskWatch(self.ledger, workspace, {WORKSPACE: ""})
        self._language: Language = language
        self._gates: dict[str, StaleWrites] = {}

    def for_branch(
        self, workspace: Path, ledger: Path, *, warn: Warn = _log.warning, expected: bool = False
    ) -> "Guards":
        """Return the guards of a copy of the files. Budgets and limits are those of the tree."""
        guards = Guards(
            workspace,
            ledger,
            ignored=None if self.ignored is None else IgnoredFiles(workspace),
            limits=self.limits,
            lock_seconds=self.locks.seconds,
            language=self._language,
            warn=warn,
            expected=expected,
        )
        guards.budget, guards.money = self.budget, self.money
        return guards

    async def began(self, agent_id: str, *, again: bool) -> None:
        """An agent begins a task, or, if not `again`, continues one after a kill."""
        self.gate(agent_id).open()
        await self._watch.began(agent_id, again=again)

    def ended(self, agent_id: str) -> None:
        """An agent's task is over: release all that it has reserved."""
        self.gate(agent_id).close()
        self.locks.release_all(agent_id)
        self.budget.release(agent_id)

    def gate(self, agent_id: str) -> StaleWrites:
        """Return the gate that an agent's reads and writes of files pass."""
        return self._gates.setdefault(agent_id, StaleWrites(self.ledger, agent_id, self._language))

    def watched(self, tool: Tool, agent_id: str) -> Tool:
        """Wrap a tool that may change files directly, such as a shell. Its changes are recorded for its agent."""
        work: Callable[..., Awaitable[Any]] = tool.callable

        @functools.wraps(work)
        async def watching(*args: Any, **kwargs: Any) -> Any:
            await asyncio.to_thread(self.ledger.begin_command, agent_id)
            try:
                return await work(*args, **kwargs)
            finally:
                await asyncio.shield(asyncio.to_thread(self.ledger.end_command, agent_id))

        return replace(tool, callable=watching)

    def before_round(self, agent_id: str, context: Conversation, length: int) -> Conversation:
        """Check before a model request with a conversation of `length` tokens; return the conversation to send.

        Raises `TooMany` if the budget is too small.
        """
        if length > LONG_CONTEXT:
            context = digested(context, _brings_report)
        self.budget.reserve(agent_id, length)
        return context

    def asked(self, agent_id: str, usage: Usage) -> None:
        """Draw the usage of a model request from the budget."""
        self.budget.draw(agent_id, usage.tokens)

    async def unmade(self, agent_id: str, answer: str, task: str, doubted: str | None) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the agent's task began.

        `doubted` is an earlier answer to the `task`, whose claims hold until they are withdrawn.
        """
        return await self._watch.unmade(agent_id, lambda: named_files(answer, task, doubted))

    async def changes(self, agent_id: str) -> FileChanges:
        """Return all changes of files since an agent's task began."""
        return await self._watch.changes(agent_id)

    async def judge(self, report: Report, *, reports: int = 1) -> Report:
        """Check an agent's report against the files: a success whose claims are wrong becomes `unverified`.

        `reports` is how often it has reported; the first report counts.
        """
        facts, reasons, gap = await self._watch.off_the_loop(lambda: self._looked(report))
        status = "unverified" if reasons and report.status == "success" else report.status
        if reports > 1:
            reasons = (*reasons, catalogue(self._language).finished_twice)
        return replace(report, status=status, facts=facts, reasons=(*report.reasons, *reasons), gap=gap)

    def _looked(self, report: Report) -> tuple[tuple[ChangedFile, ...], tuple[str, ...], Gap | None]:
        facts = self.ledger.since(report.agent_id)
        gap = self.ledger.gap
        return facts, check_claims(report.details, report.agent_id, facts, self.ledger, self._language), gap


def _brings_report(item: ContextItem) -> bool:
    return item.message.role == "tool" and item.message.name == WAIT
