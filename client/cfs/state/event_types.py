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


class SessionCreatedData(TypedDict):
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


class MessageAddedData(TypedDict):
    """Data of `message.added`."""

    turn: str
    index: int
    message: MessageData
    size: int
    title: NotRequired[str | None]


class TurnStartedData(TypedDict):
    """Data of `turn.started`."""

    turn: str


class TurnInterruptedData(TypedDict):
    """Data of `turn.interrupted`."""

    turn: str


class TokenData(TypedDict):
    """Data of `token`."""

    turn: str
    text: str
    tokens: int
    thinking: NotRequired[str]
    calls: NotRequired[list[ToolCallData]]


class TurnFinishedData(TypedDict):
    """Data of `turn.finished`."""

    turn: str
    reply: str
    finish_reason: FinishReason
    usage: UsageData
    warnings: NotRequired[list[str]]


class TurnFailedData(TurnFinishedData):
    """Data of `turn.failed`."""

    error: str


class CallDecidedData(TypedDict):
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


class QuestionAskedData(TypedDict):
    """Data of `question.asked`."""

    turn: str
    id: str
    kind: QuestionKind
    text: str
    choices: list[str]
    directory: str | None
    background: bool
    asker: str


class QuestionAnsweredData(TypedDict):
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
    folder: NotRequired[str]


class WorkReportedData(TypedDict):
    """Data of `work.reported`."""

    turn: str
    work: WorkData


class HistoryReplacedData(TypedDict):
    """Data of `history.replaced`."""

    messages: int
    size: int
    title: NotRequired[str | None]
    failed: NotRequired[bool]
    rewound_to: NotRequired[int | None]


class ContextShiftedData(TypedDict):
    """Data of `context.shifted`."""

    turn: str
    messages: int
    tokens: int
    begin: int
    summary: NotRequired[str]


class SettingsChangedData(TypedDict):
    """Data of `settings.changed`."""

    settings: SessionOptions
    title: NotRequired[str | None]


class StateChangedData(TypedDict):
    """Data of `state.changed`."""

    state: State
    queued: int
    turn: NotRequired[str]
    detail: NotRequired[str]


class SessionDeletedData(TypedDict):
    """Data of `session.deleted`."""

    renamed_to: NotRequired[str]


class StaleData(TypedDict, total=False):
    """Data of `stale`: numbers of events, and the present state as in `cfs.wire.SessionDetail`."""

    asked: int
    last: int
    session: dict[str, Any]


class GoodbyeData(TypedDict):
    """Data of `goodbye`."""


class ConnectedData(TypedDict):
    """Data of `connected`."""


if TYPE_CHECKING:
    _Type = TypeVar("_Type", bound=EventName, covariant=True)
    _Data = TypeVar("_Data", bound=Mapping[str, Any], covariant=True)

    class _EventOf(StreamEvent, Generic[_Type, _Data]):
        type: _Type
        data: _Data

    SessionEvent = (
        _EventOf[Literal["session.created"], SessionCreatedData]
        | _EventOf[Literal["message.added"], MessageAddedData]
        | _EventOf[Literal["turn.started"], TurnStartedData]
        | _EventOf[Literal["turn.interrupted"], TurnInterruptedData]
        | _EventOf[Literal["token"], TokenData]
        | _EventOf[Literal["turn.finished"], TurnFinishedData]
        | _EventOf[Literal["turn.failed"], TurnFailedData]
        | _EventOf[Literal["call.decided"], CallDecidedData]
        | _EventOf[Literal["question.asked"], QuestionAskedData]
        | _EventOf[Literal["question.answered"], QuestionAnsweredData]
        | _EventOf[Literal["work.reported"], WorkReportedData]
        | _EventOf[Literal["history.replaced"], HistoryReplacedData]
        | _EventOf[Literal["context.shifted"], ContextShiftedData]
        | _EventOf[Literal["settings.changed"], SettingsChangedData]
        | _EventOf[Literal["state.changed"], StateChangedData]
        | _EventOf[Literal["session.deleted"], SessionDeletedData]
        | _EventOf[Literal["stale"], StaleData]
        | _EventOf[Literal["goodbye"], GoodbyeData]
        | _EventOf[Literal["connected"], ConnectedData]
    )
else:
    SessionEvent = StreamEvent
