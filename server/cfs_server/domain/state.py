"""The state of a session. Anyone may read it; only changes alter it (`domain.changes`)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cfs.wire import AgentWork, EventType, Origin, Settings, State, Usage
from cfs_server.domain.history import History, HistoryHead
from cfs_server.domain.message_sizes import cost_of_value
from cfs_server.domain.questions import Question
from cfs_server.domain.quotas import StorageUsage
from cfs_server.domain.spending import Spent, spent_of
from cfs_server.domain.turns import InvalidTransition, Turn, TurnHead, TurnState


@lru_cache(maxsize=256)
def shared(settings: Settings) -> Settings:
    """Return the first of equal settings: most sessions have the same, and each costs 1.2 KB."""
    return settings


class EventDraft(NamedTuple):
    """An event before it is numbered."""

    session: str
    type: EventType
    data: dict[str, Any]


class SessionState:
    """The state of a session. Anyone may read it; only changes alter it."""

    __slots__ = (
        "account",
        "begins_at",
        "cost",
        "created_at",
        "deleted",
        "history",
        "id",
        "key",
        "nonce",
        "origin",
        "questions",
        "queue",
        "running",
        "seq",
        "settings",
        "tokens",
        "updated_at",
        "work",
    )

    id: str
    key: str
    nonce: str
    account: StorageUsage
    settings: Settings
    history: History
    queue: list[Turn]
    running: Turn | None
    questions: dict[str, Question]
    """The open questions of its agent and the newest closed ones of the same turn, by id, oldest first."""
    deleted: bool
    origin: Origin | None
    """What it is a copy of."""
    work: AgentWork | None
    """What its agent has said last of its work."""
    tokens: int
    cost: float
    """In US dollars."""
    created_at: float
    updated_at: float
    seq: int
    """The sequence number of the session's last record."""
    begins_at: int
    """The sequence number of the record that contains the first messages of the history."""

    def spend(self, usage: Usage) -> None:
        """Count a usage. Only changes call this."""
        self.tokens, self.cost = Spent(self.tokens, self.cost).plus(spent_of(usage))

    @property
    def idle(self) -> bool:
        """Whether no turn runs or waits."""
        return self.running is None and not self.queue

    @property
    def state(self) -> State:
        """`generating` from the acceptance of a turn to the end of the last waiting one."""
        if self.running is not None:
            return "generating"
        if self.queue:
            return "waiting_for_agent" if self.settings.driver == "agent" else "generating"
        return "idle"

    @property
    def title(self) -> str | None:
        """What listings show: the setting, or what a user wrote first."""
        return self.settings.title or self.history.topic or None

    def retitled(self, before: str | None) -> dict[str, str | None]:
        """Return the title for an event, if it is another one than before."""
        return {} if self.title == before else {"title": self.title}

    def failure(self) -> dict[str, bool]:
        """Return for an event without messages whether the newest one is an error, if it is."""
        return {"failed": True} if self.history.failed else {}

    @property
    def waiting_bytes(self) -> int:
        """The memory of what is not in the history: messages that wait, questions, and what the agent says."""
        questions = sum(question.cost for question in self.questions.values())
        return sum(turn.waiting_bytes for turn in self.queue) + questions + cost_of_work(self.work)

    def turn(self, turn_id: str) -> Turn:
        """Return the running or waiting turn with this id. Raises `InvalidTransition` if it has ended."""
        turn = self.find_turn(turn_id)
        if turn is None:
            raise InvalidTransition(f"turn {turn_id} neither runs nor waits")
        return turn

    def find_turn(self, turn_id: str) -> Turn | None:
        """Return the running or waiting turn with this id; None if it has ended."""
        if self.running is not None and self.running.id == turn_id:
            return self.running
        return next((turn for turn in self.queue if turn.id == turn_id), None)

    def requeue(self, turn_id: str) -> None:
        """Put the running turn back at the head of the queue, without its partial reply. Only changes call this."""
        turn = self.turn(turn_id)
        turn.enter(TurnState.QUEUED)
        turn.said.clear()
        turn.stored = 0
        self.running = None
        self.queue.insert(0, turn)

    def created_event(self, **names: str) -> EventDraft:
        """Return the event that announces the session with its id, and with earlier names of it or of its original."""
        settings, size = self.settings.model_dump(), self.history.size
        data = {"settings": settings, "messages": len(self.history), "size": size, "life": self.nonce, **names}
        data |= {**self.retitled(None), **self.failure()}
        data |= {} if self.origin is None else {"origin": self.origin.model_dump()}
        return EventDraft(self.id, "session.created", data)


@dataclass(frozen=True, slots=True)
class Head:
    """A session at the record `seq`, without its messages: a checkpoint. `number` is that of its last event."""

    seq: int
    key: str
    id: str
    life: str
    owner: str
    settings: Settings
    created_at: float
    updated_at: float
    tokens: int
    number: int
    history: HistoryHead
    running: TurnHead | None = None
    queue: tuple[TurnHead, ...] = ()
    questions: tuple[Question, ...] = ()
    origin: Origin | None = None
    cost: float = 0.0
    work: AgentWork | None = None


def cost_of_work(work: AgentWork | None) -> int:
    """Return the memory of what an agent says of its work, in bytes."""
    return 0 if work is None else cost_of_value(work.model_dump())
