"""All changes of the state of a session, and the records of them.

The state changes only in `Session.apply(change)`. A change is a value with all data that is needed to repeat it. From
the recorded changes of a store, in order, `SessionStore.replay` builds the same store with the same events. Events for
clients are derived from changes and may be smaller: `history.replaced` contains the number of messages, and
`HistoryReplaced` the messages.

To add a change, write a class with `apply`, which alters the state and returns the events to publish.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol

from cfs.wire import AgentWork, CallDecision, FinishReason, Message, Origin, Settings, Usage
from cfs_server.domain.authors import Author
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.history import History, Window
from cfs_server.domain.questions import Question, oldest_closed
from cfs_server.domain.state import EventDraft, SessionState, cost_of_work, shared
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import Lease, Turn, TurnRequest, TurnState
from cfs_server.engine.contract.interface import Delta

NO_MESSAGES, WHOLE = SizedMessages(), Window()


_NO_TOKENS = Usage()


class SessionChange(Protocol):
    """One change of a session."""

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Alter the state at a time in seconds since the epoch. Return the events of the change."""


class Record(NamedTuple):
    """A change with its session's key, its time in seconds since the epoch, the events that it published, its author.

    `number` and `position` are the last ones of the session's log and of the common log after the change.
    """

    key: str
    at: float
    change: SessionChange
    events: tuple[LoggedEvent, ...] = ()
    author: Author | None = None
    number: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Created:
    """A session is created. This is the first change of each session.

    `key` stays when the session is renamed. `life` distinguishes it from others with the same id. `owner` is the
    account that it counts for.
    """

    id: str
    key: str
    life: str
    owner: str
    settings: Settings
    history: SizedMessages = NO_MESSAGES
    window: Window = WHOLE
    forked_from: str | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Initialize an empty state."""
        session.id, session.key, session.nonce, session.settings = self.id, self.key, self.life, shared(self.settings)
        session.history = History(session.account, self.history, at)
        session.history.window = self.window
        session.queue, session.running, session.deleted = [], None, False
        session.tokens, session.cost = 0, 0.0
        session.questions = {}
        session.work = None
        taken = len(self.history.messages)
        session.origin = None if self.forked_from is None else Origin(session=self.forked_from, messages=taken)
        session.created_at = session.updated_at = at
        session.account.add(sessions=1)
        return (session.created_event(**({} if self.forked_from is None else {"forked_from": self.forked_from})),)


@dataclass(frozen=True, slots=True)
class Renamed:
    """A session gets another id. The log, the history and the turns stay (S14)."""

    id: str

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Announce the deletion to readers of the old id, and the session to readers of the new one."""
        old, session.id = session.id, self.id
        gone = EventDraft(old, "session.deleted", {"renamed_to": self.id})
        return gone, session.created_event(renamed_from=old)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A session and all its turns end (S2)."""

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Free the resources of the session."""
        for turn in (session.running, *session.queue):
            if turn is not None:
                turn.enter(TurnState.CANCELLED)
        session.account.add(sessions=-1, size=-session.waiting_bytes)
        session.running = None
        session.queue.clear()
        session.questions.clear()
        session.work = None
        session.history.release(at)
        session.deleted = True
        return (EventDraft(session.id, "session.deleted", {}),)


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Turns that have not started get other settings (S9)."""

    settings: Settings

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Replace the settings."""
        title, session.settings = session.title, shared(self.settings)
        data = {"settings": self.settings.model_dump(), **session.retitled(title)}
        return (EventDraft(session.id, "settings.changed", data),)


@dataclass(frozen=True, slots=True)
class StateAnnounced:
    """The current state is published. `turn` is the turn that caused it; `attended` says that an agent is attached."""

    turn: str | None = None
    attended: bool = False

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Change only the time of the last event."""
        data: dict[str, Any] = {"state": session.state, "queued": len(session.queue)}
        if self.turn is not None:
            data["turn"] = self.turn
        if session.state == "waiting_for_agent" and not self.attended:
            data["detail"] = "no agent attached"
        return (EventDraft(session.id, "state.changed", data),)


@dataclass(frozen=True, slots=True)
class TokensSpent:
    """The session has used the model outside of a turn's reply, for a summary."""

    usage: Usage

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Count the tokens."""
        session.spend(self.usage)
        return ()


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """A message is appended while a turn runs. `opens` is true for the turn's own message."""

    message: Message
    turn: str
    opens: bool = False

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Append the message. A turn's own message no longer counts as waiting."""
        if self.opens:
            turn = session.turn(self.turn)
            session.account.add(size=-turn.waiting_bytes)
            turn.base = len(session.history)
        elif self.message.role == "assistant":
            session.turn(self.turn).note_stored(self.message.content)
        title, index = session.title, session.history.append(self.message, at)
        message = self.message.model_dump(exclude_defaults=True)
        data = {"turn": self.turn, "index": index, "message": message, "size": session.history.size}
        data |= session.retitled(title)
        return (EventDraft(session.id, "message.added", data),)


@dataclass(frozen=True, slots=True)
class FilesRewound:
    """What a rewind took back in a workspace: some paths, from the change `before` to the change `to`."""

    workspace: str
    to: int
    before: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewind:
    """A history goes back to an earlier version, or, as `redo`, to the one before a rewind.

    `to` is the version whose messages it has then; None empties a session that did not exist yet. `operation` is the
    same for all sessions that were rewound together. `files` are those that went back with them. Without `messages`
    only they did, and the history is as before.
    """

    to: int | None
    operation: str
    redo: bool = False
    files: FilesRewound | None = None
    messages: bool = True


@dataclass(frozen=True, slots=True)
class HistoryReplaced:
    """The history is replaced (S14): by an edited one, or by that of an earlier version."""

    history: SizedMessages
    window: Window = WHOLE
    rewind: Rewind | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Replace the history."""
        title = session.title
        session.history.replace(self.history, at, rewinds=self.rewind is not None and self.rewind.messages)
        session.history.window = self.window
        data = {
            "messages": len(session.history),
            "size": session.history.size,
            **session.retitled(title),
            **session.failure(),
        }
        if self.rewind is not None and self.rewind.messages:
            data["rewound_to"] = self.rewind.to
        return (EventDraft(session.id, "history.replaced", data),)


@dataclass(frozen=True, slots=True)
class ContextShifted:
    """Prompts begin at another message from now on, without about this many `tokens` (S8)."""

    turn: str
    window: Window
    tokens: int

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Move the prompt window of the history."""
        left = session.history.count_between(session.history.window, self.window.cut)
        session.history.window = self.window
        data = {"turn": self.turn, "messages": left, "tokens": self.tokens, "begin": self.window.cut}
        return (
            EventDraft(
                session.id,
                "context.shifted",
                data | ({"summary": self.window.summary} if self.window.summary else {}),
            ),
        )


@dataclass(frozen=True, slots=True)
class MessageExcluded:
    """A message is too long for any prompt and is left out of later ones (S8)."""

    index: int

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Remove the message from the window."""
        window = session.history.window
        session.history.window = replace(window, oversized=window.oversized | {self.index})
        return ()


@dataclass(frozen=True, slots=True)
class TurnQueued:
    """A message is accepted and waits (S4). It has a `base` if it is in the history already."""

    request: TurnRequest
    base: int | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Append the turn to the queue."""
        turn = Turn(self.request, self.base)
        session.account.add(size=turn.waiting_bytes)
        session.queue.append(turn)
        return ()


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The first queued turn starts: answered by the model, or by an agent under a lease (S10)."""

    turn: str
    lease: Lease | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Remove the turn from the queue."""
        turn = session.turn(self.turn)
        turn.enter(TurnState.RUNNING if self.lease is None else TurnState.LEASED)
        turn.lease = self.lease
        session.queue.remove(turn)
        session.running = turn
        return (EventDraft(session.id, "turn.started", {"turn": self.turn}),)


@dataclass(frozen=True, slots=True)
class ReplyExtended:
    """The reply of the running turn gets longer."""

    turn: str
    delta: Delta

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Append to the reply."""
        delta = self.delta
        session.turn(self.turn).said.append(delta)
        data: dict[str, Any] = {"turn": self.turn, "text": delta.text, "tokens": delta.tokens}
        if delta.thinking:
            data["thinking"] = delta.thinking
        if delta.calls:
            data["calls"] = [asdict(call) for call in delta.calls]
        return (EventDraft(session.id, "token", data),)


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The lease of an agent is extended."""

    turn: str
    lease: Lease

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Replace the lease."""
        session.turn(self.turn).lease = self.lease
        return ()


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The lease of an agent has expired: its partial reply is dropped, and the turn waits again."""

    turn: str

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Put the turn back at the head of the queue. Whole messages of the agent stay."""
        session.requeue(self.turn)
        return ()


@dataclass(frozen=True, slots=True)
class TurnInterrupted:
    """The server or the upstream ended during the reply, which is dropped. The turn waits, and begins again."""

    turn: str

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Put the turn back at the head of the queue."""
        session.requeue(self.turn)
        return (EventDraft(session.id, "turn.interrupted", {"turn": self.turn}),)


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The engine is asked to stop the running turn (S12)."""

    turn: str

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Record the cancellation: a turn is cancelled once."""
        session.turn(self.turn).enter(TurnState.CANCELLING)
        return ()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A running or waiting turn has ended. Its reply, if any, is already in the history.

    `error` is the reason of a failure. A message without a reply ends without an event.
    """

    turn: str
    reason: FinishReason
    reply: str = ""
    usage: Usage = _NO_TOKENS
    error: str | None = None
    announced: bool = True

    @property
    def state(self) -> TurnState:
        """The final state of the turn."""
        if self.error is not None:
            return TurnState.FAILED
        return TurnState.CANCELLED if self.reason == "cancelled" else TurnState.FINISHED

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Count the tokens of the turn and remove it, with the questions that were asked in it."""
        turn, usage = session.turn(self.turn), self.usage
        turn.enter(self.state)
        if turn is session.running:
            session.running = None
        else:
            session.account.add(size=-turn.waiting_bytes)
            session.queue.remove(turn)
        for question in [candidate for candidate in session.questions.values() if candidate.turn == self.turn]:
            session.account.add(size=-question.cost)
            del session.questions[question.id]
        session.spend(usage)
        if not self.announced:
            return ()
        data = {"turn": self.turn, "reply": self.reply, "finish_reason": self.reason, "usage": usage.model_dump()}
        if turn.warnings:
            data["warnings"] = list(turn.warnings)
        if self.error is None:
            return (EventDraft(session.id, "turn.finished", data),)
        return (EventDraft(session.id, "turn.failed", data | {"error": self.error}),)


@dataclass(frozen=True, slots=True)
class WorkReported:
    """The agent that answers the running turn says something else of its work."""

    turn: str
    work: AgentWork

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Replace what it has said before."""
        session.account.add(size=cost_of_work(self.work) - cost_of_work(session.work))
        session.work = self.work
        return (EventDraft(session.id, "work.reported", {"turn": self.turn, "work": self.work.model_dump()}),)


@dataclass(frozen=True, slots=True)
class CallDecided:
    """An agent says what was decided about a call of a tool, by a rule or a person (A11). No state depends on it."""

    turn: str
    principal: str
    decision: CallDecision

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Announce it."""
        data = {"turn": self.turn, "principal": self.principal, **self.decision.model_dump()}
        return (EventDraft(session.id, "call.decided", data),)


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """The agent that answers the running turn asks a person (A5)."""

    question: Question

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Add the question. The oldest closed ones leave."""
        question = replace(self.question, asked_at=at)
        session.questions[question.id] = question
        gone = oldest_closed(session.questions)
        for closed in gone:
            del session.questions[closed.id]
        session.account.add(size=question.cost - sum(closed.cost for closed in gone))
        data = {
            "turn": question.turn,
            "id": question.id,
            "kind": question.kind,
            "text": question.text,
            "choices": list(question.choices),
            "directory": question.directory,
            "background": question.background,
            "asker": question.asker,
        }
        return (EventDraft(session.id, "question.asked", data),)


@dataclass(frozen=True, slots=True)
class QuestionClosed:
    """A question has got its answer, or is withdrawn: the answer is None then."""

    id: str
    answer: str | None = None
    by: str | None = None
    terminal: bool = False

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Store the answer. The question can be read for a while, at most until its turn ends."""
        question = session.questions[self.id] = session.questions[self.id].closed(
            self.answer, self.by, terminal=self.terminal
        )
        data = {"turn": question.turn, "id": self.id, "answer": self.answer, "by": self.by, "terminal": self.terminal}
        return (EventDraft(session.id, "question.answered", data),)
