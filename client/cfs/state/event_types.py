"""What the events of each type contain, for type checkers (S11).

`event.data` of a `SessionEvent` has the type that belongs to `event.type`. docs/sessions.md says when each event comes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from cfs.contract.options import SessionOptions
from cfs.contract.wire import FinishReason, QuestionKind, Role, State, StepStatus
from cfs.state.stream import EventName, StreamEvent


class ToolCallData(TypedDict):
    """A call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


class MessageData(TypedDict):
    """A message of a history."""

    role: Role
    content: str
    tool_calls: NotRequired[list[ToolCallData]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    thinking: NotRequired[str]


class UsageData(TypedDict):
    """What one turn cost, as in `cfs.wire.Usage`."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    tokens_per_second: float


class OriginData(TypedDict):
    """Where a copy comes from."""

    session: str
    messages: int


class SessionCreated(TypedDict):
    """Data of `session.created`."""

    settings: SessionOptions
    messages: int
    size: int
    life: str
    title: NotRequired[str | None]
    failed: NotRequired[bool]
    origin: NotRequired[OriginData]
    forked_from: NotRequired[str]
    renamed_from: NotRequired[str]


class MessageAdded(TypedDict):
    """Data of `message.added`."""

    turn: str
    index: int
    message: MessageData
    size: int
    title: NotRequired[str | None]


class TurnStarted(TypedDict):
    """Data of `turn.started`."""

    turn: str


class TurnInterrupted(TypedDict):
    """Data of `turn.interrupted`."""

    turn: str


class Token(TypedDict):
    """Data of `token`."""

    turn: str
    text: str
    tokens: int
    thinking: NotRequired[str]
    calls: NotRequired[list[ToolCallData]]


class TurnFinished(TypedDict):
    """Data of `turn.finished`."""

    turn: str
    reply: str
    finish_reason: FinishReason
    usage: UsageData
    warnings: NotRequired[list[str]]


class TurnFailed(TurnFinished):
    """Data of `turn.failed`."""

    error: str


class CallDecided(TypedDict):
    """Data of `call.decided`: see `cfs.wire.CallDecision`; `principal` is the agent's."""

    turn: str
    principal: str
    call: str
    tool: str
    subject: str
    verdict: Literal["allowed", "denied"]
    asked: bool
    by: str | None
    rule: str
    source: str
    digest: str


class QuestionAsked(TypedDict):
    """Data of `question.asked`."""

    turn: str
    id: str
    kind: QuestionKind
    text: str
    choices: list[str]
    directory: str | None
    background: bool
    asker: str


class QuestionAnswered(TypedDict):
    """Data of `question.answered`."""

    turn: str
    id: str
    answer: str | None
    by: str | None
    terminal: bool


class PlanStepData(TypedDict):
    """A step of an agent's plan."""

    text: str
    status: StepStatus


class AgentJobData(TypedDict):
    """A job in the background, as in `cfs.wire.AgentJob`."""

    id: int
    command: str
    state: str


class BudgetData(TypedDict):
    """The budget of a tree of agents, as in `cfs.wire.BudgetUse`."""

    limit: str
    tokens: int
    cost: float


class WorkData(TypedDict):
    """What an agent says of its work, as in `cfs.wire.AgentWork`."""

    plan: list[PlanStepData]
    jobs: list[AgentJobData]
    budget: BudgetData | None


class WorkReported(TypedDict):
    """Data of `work.reported`."""

    turn: str
    work: WorkData


class HistoryReplaced(TypedDict):
    """Data of `history.replaced`."""

    messages: int
    size: int
    title: NotRequired[str | None]
    failed: NotRequired[bool]
    rewound_to: NotRequired[int | None]


class ContextShifted(TypedDict):
    """Data of `context.shifted`."""

    turn: str
    messages: int
    tokens: int
    begin: int
    summary: NotRequired[str]


class SettingsChanged(TypedDict):
    """Data of `settings.changed`."""

    settings: SessionOptions
    title: NotRequired[str | None]


class StateChanged(TypedDict):
    """Data of `state.changed`."""

    state: State
    queued: int
    turn: NotRequired[str]
    detail: NotRequired[str]


class SessionDeleted(TypedDict):
    """Data of `session.deleted`."""

    renamed_to: NotRequired[str]


class Stale(TypedDict, total=False):
    """Data of `stale`: numbers of events, and the present state as in `cfs.wire.SessionDetail`."""

    asked: int
    last: int
    session: dict[str, Any]


class Goodbye(TypedDict):
    """Data of `goodbye`."""


class Connected(TypedDict):
    """Data of `connected`."""


if TYPE_CHECKING:
    _Type = TypeVar("_Type", bound=EventName, covariant=True)
    _Data = TypeVar("_Data", bound=Mapping[str, Any], covariant=True)

    class _EventOf(StreamEvent, Generic[_Type, _Data]):
        type: _Type
        data: _Data

    SessionEvent = (
        _EventOf[Literal["session.created"], SessionCreated]
        | _EventOf[Literal["message.added"], MessageAdded]
        | _EventOf[Literal["turn.started"], TurnStarted]
        | _EventOf[Literal["turn.interrupted"], TurnInterrupted]
        | _EventOf[Literal["token"], Token]
        | _EventOf[Literal["turn.finished"], TurnFinished]
        | _EventOf[Literal["turn.failed"], TurnFailed]
        | _EventOf[Literal["call.decided"], CallDecided]
        | _EventOf[Literal["question.asked"], QuestionAsked]
        | _EventOf[Literal["question.answered"], QuestionAnswered]
        | _EventOf[Literal["work.reported"], WorkReported]
        | _EventOf[Literal["history.replaced"], HistoryReplaced]
        | _EventOf[Literal["context.shifted"], ContextShifted]
        | _EventOf[Literal["settings.changed"], SettingsChanged]
        | _EventOf[Literal["state.changed"], StateChanged]
        | _EventOf[Literal["session.deleted"], SessionDeleted]
        | _EventOf[Literal["stale"], Stale]
        | _EventOf[Literal["goodbye"], Goodbye]
        | _EventOf[Literal["connected"], Connected]
    )
else:
    SessionEvent = StreamEvent
