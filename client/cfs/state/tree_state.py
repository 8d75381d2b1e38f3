"""What agents of a tree do and how their work ended, read from their sessions. Pure: no I/O.

The dashboard's counterpart is `outcome.js`. The tests of both use the same cases, `tests/fixtures/outcomes.json`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cfs.contract.wire import AgentJob, AgentWork, BudgetUse, Message, SessionDetail, State, ToolCall

OutcomeStatus = Literal["finished", "unverified", "budget", "cancelled", "failed"]

REPORT = "sys_finish_task"
"""The tool by which a sub-agent reports."""
_CANCELLED = "[Cancelled]"
_ERROR = re.compile(r"\[Error: (.*)\]", re.DOTALL)
_BUDGET = re.compile(
    r"budget of .* is used up|came to no end in \d+ turns|took longer than [\d.e+]+ s"
    r"|预算已用完|\d+ 轮内没有结束|用时超过"
)
_STOPPED = re.compile(r"it was cancelled|its parent has ended|cancelled|它被取消了|它的上级已结束", re.IGNORECASE)
_UNVERIFIED = re.compile(r"\[[^\]\n]+ (unverified|未证实)\]")


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How the last task of an agent ended.

    `status` is `finished`, `unverified` (its report does not agree with the files), `budget` (tokens, steps or time are
    used up), `cancelled` or `failed`. `text` is its answer or report, or the reason. `report` holds the arguments of
    the call by which a sub-agent reported: `status`, `summary` and `details`, as the model wrote them.
    """

    status: OutcomeStatus
    text: str
    report: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether it finished, and its report agrees with the files."""
        return self.status == "finished"


@dataclass(frozen=True, slots=True)
class TreeAgent:
    """One agent of a tree: its session, what it does now, and what it took so far.

    `state` is that of the session. An agent is `paused` if its session, or one above it, is. `tool` is the tool that
    runs and `tool_since` when it was called, in seconds since the epoch. `tokens` counts those of the turns that have
    ended, `cost` is what they cost in US dollars, and `seconds` the time of all its turns. `work` is what it has said
    last of its work: its plan, its jobs in the background, and the budget if it is the root of a tree. `outcome` is
    None before the end of its first task, and while it works.
    """

    session: str
    state: State
    paused: bool
    open_questions: int
    queued: int
    messages: int
    tokens: int
    seconds: float
    tool: str | None
    tool_since: float | None
    outcome: AgentOutcome | None
    cost: float = 0.0
    work: AgentWork | None = None

    @property
    def name(self) -> str:
        """The last part of its session's id."""
        return self.session.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """How many agents are above it."""
        return self.session.count("/")


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file in the workspace of a tree. `path` is relative to it, `size` in bytes, `updated_at` since the epoch.

    `version` changes with every write; a write may name the version that it replaces.
    """

    path: str
    size: int
    version: str
    updated_at: float


@dataclass(frozen=True, slots=True)
class TreeOutcome:
    """How the work of a tree ended: `status` and `text` are those of its root. `agents` has the root first.

    `budget` is what the tree has spent of its budget, if its agents have said it, and `jobs` are all jobs in the
    background, by the session of their agent.
    """

    status: OutcomeStatus
    text: str
    agents: tuple[TreeAgent, ...]

    @property
    def ok(self) -> bool:
        """Whether the root finished, and its answer agrees with the files."""
        return self.status == "finished"

    @property
    def budget(self) -> BudgetUse | None:
        """What the tree has spent of its budget for this task."""
        work = self.agents[0].work
        return None if work is None else work.budget

    @property
    def jobs(self) -> tuple[tuple[str, AgentJob], ...]:
        """All jobs of the last tasks, with the session of their agent."""
        return tuple((agent.session, job) for agent in self.agents if agent.work for job in agent.work.jobs)


def agent_of(detail: SessionDetail, *, paused: bool, now: float) -> TreeAgent:
    """Describe the agent of a session; `paused` says whether one above is, `now` is in seconds since the epoch."""
    call = running_call(detail.history) if detail.state == "generating" else None
    at = None if call is None or call[0] >= len(detail.times) else detail.times[call[0]]
    return TreeAgent(
        session=detail.id,
        state=detail.state,
        paused=paused or detail.settings.paused,
        open_questions=detail.open_questions,
        queued=detail.queued,
        messages=detail.messages,
        tokens=detail.tokens,
        seconds=_seconds(detail, now),
        tool=None if call is None else call[1].name,
        tool_since=at,
        outcome=outcome_of(detail.state, detail.history),
        cost=detail.cost,
        work=detail.work,
    )


def outcome_of(state: State, history: Sequence[Message]) -> AgentOutcome | None:
    """Return how the last task in a session ended; None while there is none, or while it runs."""
    if state != "idle" or not history or history[-1].role in ("system", "user"):
        return None
    reply = history[-1].content.strip() if history[-1].role == "assistant" else ""
    report = _report_in(history)
    if error := _ERROR.fullmatch(reply):
        return AgentOutcome(_kind_of(error[1]), error[1], report)
    if reply.endswith(_CANCELLED):
        return AgentOutcome("cancelled", reply.removesuffix(_CANCELLED).strip(), report)
    if mark := _UNVERIFIED.match(reply):
        return AgentOutcome("unverified", reply[mark.end() :].strip(), report)
    summary = report.get("summary") if report else None
    failed = report is not None and report.get("status") == "failed"
    return AgentOutcome("failed" if failed else "finished", str(summary or reply), report)


def running_call(history: Sequence[Message]) -> tuple[int, ToolCall] | None:
    """Return the last call without a result, and the index of its message; None if there is none."""
    ended = set()
    for index in range(len(history) - 1, -1, -1):
        message = history[index]
        if message.role == "tool":
            ended.add(message.tool_call_id)
        else:
            left = [call for call in message.tool_calls if call.id not in ended]
            return (index, left[-1]) if left else None
    return None


def _kind_of(reason: str) -> OutcomeStatus:
    """Classify a failure by its reason, as the agents' runtime words it."""
    if _BUDGET.search(reason):
        return "budget"
    return "cancelled" if _STOPPED.match(reason) else "failed"


def _report_in(history: Sequence[Message]) -> Mapping[str, Any] | None:
    """Return what it reported in its last task."""
    for message in reversed(history):
        if message.role == "user":
            break
        for call in message.tool_calls:
            if call.name == REPORT:
                return call.arguments
    return None


def _seconds(detail: SessionDetail, now: float) -> float:
    """Sum up the time from each message of a user to the last message before the next one."""
    began: float | None = None
    last = total = 0.0
    for message, at in zip(detail.history, detail.times, strict=False):
        if message.role == "user":
            total += 0.0 if began is None else last - began
            began = at
        last = at
    if began is None:
        return 0.0
    return total + max(0.0, (now if detail.state == "generating" else last) - began)
