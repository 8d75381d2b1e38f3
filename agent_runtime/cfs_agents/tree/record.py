"""The record of a sub-agent: its identity, its rights, and the state of its task (B3)."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from cfs.wire import PlanStep, Usage
from cfs_agents.guards.report import Report
from cfs_agents.tree.session_context import AgentSpec

VERSION = "1.0"

RecordedState = Literal["new", "working", "done"]
"""The stages of a task on disk: not started; started and not reported; reported."""


_BY_ALIAS = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)


def _saved_as(name: str, default: Any = None) -> Any:
    """Declare a field whose name in `session_status.json` is another one."""
    return Field(default=default, validation_alias=name, serialization_alias=name)


class InboxMessage(BaseModel):
    """A message that waits for an agent: of another agent, or the notification that a child is done.

    `id` is that of the call which sent it, or of the report, so that no message is delivered twice.
    """

    model_config = ConfigDict(frozen=True, **_BY_ALIAS)

    id: str
    sender: str
    content: str
    is_notification: bool = _saved_as("notice", False)


class LeaseRecord(BaseModel):
    """A claimed turn of the server: its id, the secret of the claim, and the message that began the turn.

    `life` distinguishes sessions of one name, because a session may be lost and created again. `traceparent` is the
    trace of the turn, if the server records one.
    """

    model_config = ConfigDict(frozen=True)

    turn: str
    claim: str
    content: str
    life: str | None = None
    traceparent: str | None = None


class BranchRecord(BaseModel):
    """The state of an agent's own copy of the files.

    `merging` are the versions, of the parent's files and of the copy, that are being merged. `conflicts` are sentences
    about the merges of the present task.
    """

    model_config = ConfigDict(frozen=True)

    merging: tuple[int, int] | None = None
    conflicts: tuple[str, ...] = ()


def _as_list(value: object) -> object:
    """Read the format of earlier versions, which ran calls one after the other."""
    return [] if value is None else [value] if isinstance(value, str) else value


class SubAgentRecord(BaseModel):
    """One sub-agent in `session_status.json`: its identity, its rights, and the state of its task.

    `begun` are the ids of started calls without a result. `asking` is the one of them that waits for a person, so that
    nothing of it has happened. `items` are those of the context: a whole item, or `{"at": n, ...}` for an item whose
    message is the n-th of `messages.json`. `messages` is the number of messages in that file. `requested_name` is the
    name that its parent asked for, and `order` the number of the root's task during which it was started.
    `spent_before` are the tokens that it and those below it had used before its present task, and `usage_before` what
    its own replies had. `cost` is what its requests have cost in US dollars if the tree has a budget in money,
    `cost_reserved` the most that the present one can cost, and `cost_before` what the tree had cost before its present
    task. `doubted` is an answer of the root that did not agree with the files. `life` and `settings` are those of the
    session on the server, and `gone` says that this session was deleted or renamed. `rewound` is the version of the
    session's last rewind that the agent has followed. An agent with a `branch` works in a copy of the files. Times are
    in seconds since the epoch.
    """

    model_config = _BY_ALIAS

    schema_version: str = VERSION
    session_id: str
    agent_id: str
    agent_name: str
    parent_id: str | None = None
    parent_session_id: str | None = None
    depth: int = 0
    role_description: str = ""
    system_instruction: str = ""
    task_goal: str = ""
    max_turns: int = 10
    timeout: float | None = None
    budget: int | None = None
    spawned_by: str | None = None
    requested_name: str = ""
    order: int = 0
    tasks: int = 0
    spent_before: int = 0
    usage_before: Usage = Usage()
    cost: float = 0.0
    cost_reserved: float = 0.0
    cost_before: float = 0.0
    created_at: float = 0.0
    updated_at: float = 0.0
    state: RecordedState = "new"
    seconds_used: float = 0.0
    rounds: int = 0
    usage: Usage = Usage()
    lease: LeaseRecord | None = _saved_as("held")
    begun: Annotated[list[str], BeforeValidator(_as_list)] = []
    asking: str = ""
    broken: dict[str, str] = Field(default_factory=dict)
    inbox: list[InboxMessage] = Field(default_factory=list)
    seen: list[str] = Field(default_factory=list)
    nudges: list[str] = _saved_as("asked", [])
    doubted: str | None = None
    finish: dict[str, Any] | None = None
    plan: list[PlanStep] = Field(default_factory=list)
    report: dict[str, Any] | None = None
    report_delivered: bool = _saved_as("heard", True)
    memory: dict[str, Any] = Field(default_factory=dict)
    messages: int = 0
    rewound: int = 0
    branch: BranchRecord | None = None
    items: list[dict[str, Any]] = Field(default_factory=list)
    life: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    gone: str | None = None

    @property
    def unfinished(self) -> bool:
        """Whether a task was interrupted, or the end of its turn."""
        return self.state != "done" or self.lease is not None

    def deliver(self, message: InboxMessage) -> bool:
        """Put a message into the inbox unless it was there before; return whether it is new."""
        if message.id in self.seen:
            return False
        self.seen.append(message.id)
        self.inbox.append(message)
        return True


_REPORT = TypeAdapter(Report)


def spec_of(record: SubAgentRecord) -> AgentSpec:
    """Return the definition of a stored agent."""
    return AgentSpec(
        record.agent_name,
        record.role_description,
        record.system_instruction,
        record.task_goal,
        record.max_turns,
        record.timeout,
        record.budget,
    )


def report_of(record: SubAgentRecord) -> Report | None:
    """Return the report in a record."""
    return _REPORT.validate_python(record.report) if record.report is not None else None


def state_of(report: Report) -> dict[str, object]:
    """Return a report as JSON values."""
    state: dict[str, object] = _REPORT.dump_python(report, mode="json")
    return state


class SubAgentState(StrEnum):
    """The state of a sub-agent."""

    STARTING = "starting"
    """It has a task, and has not claimed the turn of it yet, or not again after an interruption."""
    WORKING = "working"
    """It sends requests to its model and runs tools."""
    WAITING = "waiting"
    """It waits for a report, for the consent of a person, or for the end of a pause."""
    REPORTING = "reporting"
    """Its task is over: its report is checked and stored, and its turn ends. It cannot be cancelled any more."""
    DONE = "done"
    """It has reported, and takes another message as its next task."""


TRANSITIONS: dict[SubAgentState, frozenset[SubAgentState]] = {
    SubAgentState.STARTING: frozenset({SubAgentState.WORKING, SubAgentState.REPORTING, SubAgentState.DONE}),
    SubAgentState.WORKING: frozenset({SubAgentState.WAITING, SubAgentState.REPORTING, SubAgentState.STARTING}),
    SubAgentState.WAITING: frozenset({SubAgentState.WORKING, SubAgentState.REPORTING, SubAgentState.STARTING}),
    SubAgentState.REPORTING: frozenset({SubAgentState.DONE, SubAgentState.STARTING}),
    SubAgentState.DONE: frozenset({SubAgentState.STARTING}),
}
"""The states that may follow each state. An interruption leads back to `STARTING` if the task is to be resumed."""


def state_at_rest(record: SubAgentRecord) -> SubAgentState:
    """Return the state of a sub-agent that does not run; it determines the next action when the tree runs."""
    return SubAgentState.DONE if record.state == "done" else SubAgentState.STARTING
