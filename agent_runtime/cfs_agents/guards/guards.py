"""All guards of one tree: limits, ledger, locks, and write checks (B7). Only the ledger survives a kill."""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from cfs.errors import TooMany
from cfs.wire import Usage
from cfs_agents.base.disk import Warn, disk_errors
from cfs_agents.base.events import FileChanges
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.base.threads import to_the_end
from cfs_agents.base.usage import tokens
from cfs_agents.context import Context, ContextItem
from cfs_agents.guards.files import ChangeLog, Locks, StaleWrites, check_claims, digested
from cfs_agents.guards.report import WAIT, Change, ChangeKind, Gap, Report
from cfs_agents.loop.claims import named_files
from cfs_agents.loop.repetition import masked
from cfs_agents.tools import Tool
from cfs_agents.tools.files import WORKSPACE
from cfs_agents.tools.registry import ToolError

_log = get_logger(__name__)


@dataclass(slots=True)
class _Account:
    parent: str | None
    limit: int | None
    used: int = 0
    before: int = 0
    reserved: dict[str, int] = field(default_factory=dict)

    @property
    def spoken_for(self) -> int:
        return self.used - self.before + sum(self.reserved.values())


class TreeBudget:
    """The accounts of one tree's agents, in tokens read and written. `limit` None is no limit of its own."""

    def __init__(self, language: Language = "en") -> None:
        self._say = catalogue(language)
        self._accounts: dict[str, _Account] = {}

    def open(self, agent_id: str, parent: str | None, limit: int | None, used: int = 0) -> None:
        """Open an account below the parent's; `used` is the agent's usage in an earlier process.

        An existing account gets the limit and keeps its usage.
        """
        if agent_id in self._accounts:
            self._accounts[agent_id].limit = limit
            return
        self._accounts[agent_id] = _Account(parent, limit)
        self.draw(agent_id, used)

    def renew(self, agent_id: str, limit: int | None, before: int) -> None:
        """Limit what an agent, and all below it, use from now on; `before` is what they had used before its task."""
        account = self._accounts[agent_id]
        account.limit, account.before = limit, before

    def reserve(self, agent_id: str, tokens: int) -> None:
        """Reserve the least that the next question costs, until something is drawn.

        Raises `TooMany` if the agent's budget, or one above it, does not have that much.
        """
        line = self._line(agent_id)
        for name in line:
            self._accounts[name].reserved.pop(agent_id, None)
        for name in line:
            account = self._accounts[name]
            if account.limit is not None and account.spoken_for + tokens > account.limit:
                raise TooMany(self._say.budget.format(name, account.spoken_for, account.limit))
        for name in line:
            self._accounts[name].reserved[agent_id] = tokens

    def draw(self, agent_id: str, tokens: int) -> None:
        """Draw the cost of a reply from the agent's account and all above it."""
        for name in self._line(agent_id):
            self._accounts[name].used += tokens
            self._accounts[name].reserved.pop(agent_id, None)

    def release(self, agent_id: str) -> None:
        """Release the reservations of an agent that has ended."""
        for name in self._line(agent_id):
            self._accounts[name].reserved.pop(agent_id, None)

    def used(self, agent_id: str) -> int:
        """Return the usage of an agent and all its descendants."""
        return self._accounts[agent_id].used

    def _line(self, agent_id: str) -> list[str]:
        """Return an agent and all above it."""
        line: list[str] = []
        name: str | None = agent_id
        while name is not None and name in self._accounts:
            line.append(name)
            name = self._accounts[name].parent
        return line


@dataclass(frozen=True, slots=True)
class Limits:
    """`depth` counts the levels below the root; `alive` and `total` count sub-agents."""

    depth: int = 2
    alive: int = 64
    total: int = 256

    def check_spawn(self, *, depth: int, alive: int, total: int, language: Language = "en") -> None:
        """Check one more agent, `depth` levels below the root. Raises `ToolError` with the reason."""
        say = catalogue(language)
        if depth > self.depth:
            raise ToolError(say.too_deep.format(self.depth))
        if total >= self.total:
            raise ToolError(say.too_many.format(total))
        if alive >= self.alive:
            raise ToolError(say.too_many_alive.format(alive))


MAX_ATTEMPTS = 3
"""How many children of an agent may fail at one goal."""
MAX_FAILURES = 6
"""How many children of an agent may fail one after the other."""


def check_attempts(goal: str, outcomes: Sequence[tuple[str, bool]], language: Language = "en") -> None:
    """Check whether one more child makes sense. `outcomes` are the goals of an agent's children, and their success.

    Raises `ToolError` with the reason: a new child for the same goal is the same step again, whatever its name.
    """
    say = catalogue(language)
    failed = sum(_alike(other, goal) for other, ok in outcomes if not ok)
    if failed >= MAX_ATTEMPTS:
        raise ToolError(say.tried_often.format(failed))
    last = [ok for _, ok in outcomes[-MAX_FAILURES:]]
    if len(last) == MAX_FAILURES and not any(last):
        raise ToolError(say.all_failed.format(MAX_FAILURES))


def _alike(goal: str, other: str) -> bool:
    return _plain(goal) == _plain(other)


def _plain(goal: str) -> str:
    """Leave out what may differ between two wordings of a goal: case, white space, punctuation, ids and times."""
    return " ".join(re.findall(r"\w+", masked(goal).casefold()))


LONG_CONTEXT = 800
"""Tokens of a conversation above which older reports are shortened to one line each."""


class Guards:
    """The guards of the tree whose shared files are in `workspace`; `ledger` is where their ledger is kept.

    Use it from the event loop; the disk is read in threads. `warn` gets a sentence for each repair of the ledger,
    also where an `expected` one is missing.
    """

    def __init__(
        self,
        workspace: Path,
        ledger: Path | None = None,
        *,
        limits: Limits | None = None,
        lock_seconds: float = 120.0,
        language: Language = "en",
        warn: Warn = _log.warning,
        expected: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.locks = Locks(lock_seconds, language=language)
        self.budget = TreeBudget(language)
        with disk_errors(workspace):
            self.ledger = ChangeLog(workspace, ledger, warn=warn, expected=expected)
        self._workspace = workspace
        self._language: Language = language
        self._gates: dict[str, StaleWrites] = {}

    # -- the life of an agent -------------------------------------------------------------------------------------

    async def began(self, agent_id: str, *, again: bool) -> None:
        """An agent begins a task, or, if not `again`, continues one after a kill."""
        self.gate(agent_id).open()

        def mark() -> None:
            with disk_errors(self._workspace):
                self.ledger.mark(agent_id, again=again)

        await to_the_end(mark)

    def ended(self, agent_id: str) -> None:
        """An agent's task is over: release all that it has reserved."""
        self.gate(agent_id).close()
        self.locks.release_all(agent_id)
        self.budget.release(agent_id)

    # -- its tools ------------------------------------------------------------------------------------------------

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

    # -- its steps ------------------------------------------------------------------------------------------------

    def before_round(self, agent_id: str, context: Context, length: int) -> Context:
        """Check before a model request with a conversation of `length` tokens; return the conversation to send.

        Raises `TooMany` if the budget is too small.
        """
        if length > LONG_CONTEXT:
            context = digested(context, _brings_report)
        self.budget.reserve(agent_id, length)
        return context

    def asked(self, agent_id: str, usage: Usage) -> None:
        """Draw the usage of a model request from the budget."""
        self.budget.draw(agent_id, tokens(usage))

    async def unmade(self, agent_id: str, answer: str, task: str, doubted: str | None) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the agent's task began.

        `doubted` is an earlier answer to the `task`, whose claims hold until they are withdrawn.
        """

        def look() -> tuple[str, ...]:
            names = named_files(answer, task, doubted)
            places = {f"{WORKSPACE}/": "", f"{self._workspace}/": ""}
            with disk_errors(self._workspace):
                return self.ledger.unmade(agent_id, names, places) if names else ()

        return await to_the_end(look)

    async def changes(self, agent_id: str) -> FileChanges:
        """Return all changes of files since an agent's task began."""
        with disk_errors(self._workspace):
            facts = await to_the_end(lambda: self.ledger.since(agent_id))
        return FileChanges(*(tuple(each.path for each in facts if each.kind == kind) for kind in get_args(ChangeKind)))

    async def judge(self, report: Report, *, reports: int = 1) -> Report:
        """Check an agent's report against the files: a success whose claims are wrong becomes `unverified`.

        `reports` is how often it has reported; the first report counts.
        """
        facts, reasons, gap = await to_the_end(lambda: self._looked(report))
        status = "unverified" if reasons and report.status == "success" else report.status
        if reports > 1:
            reasons = (*reasons, catalogue(self._language).finished_twice)
        return replace(report, status=status, facts=facts, reasons=(*report.reasons, *reasons), gap=gap)

    def _looked(self, report: Report) -> tuple[tuple[Change, ...], tuple[str, ...], Gap | None]:
        with disk_errors(self._workspace):
            facts = self.ledger.since(report.agent_id)
            gap = self.ledger.gap
            return facts, check_claims(report.details, report.agent_id, facts, self.ledger, self._language), gap


def _brings_report(item: ContextItem) -> bool:
    return item.message.role == "tool" and item.message.name == WAIT
