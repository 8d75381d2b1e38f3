"""The state of a session, and every change that it can undergo.

A session's state changes only by `Session.apply(change)`. A change is a value that carries all that is needed to do it
again: whoever records the changes of a store, in their order, can make the same store from them
(`SessionStore.replay`), with the same events. The events that clients see are derived from the changes and may be
smaller: `history.replaced` counts the messages that `HistoryReplaced` holds.

To add a change, write a class with `apply`, which alters the state and returns the events to publish.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol

from cfs.wire import EventType, FinishReason, Message, Settings, State, Usage
from cfs_server.engine.interface import Delta
from cfs_server.sessions.history import History, Weighed, Window
from cfs_server.sessions.quotas import StorageUsage
from cfs_server.sessions.turns import InvalidTransition, Lease, Turn, TurnRequest, TurnState

NO_MESSAGES, WHOLE = Weighed(), Window()
_NO_TOKENS = Usage()


class EventDraft(NamedTuple):
    """An event before it has its numbers."""

    session: str
    type: EventType
    data: dict[str, Any]


class SessionState:
    """What a session is: read by everybody, altered by changes only."""

    id: str
    key: str
    nonce: str
    account: StorageUsage
    settings: Settings
    history: History
    queue: deque[Turn]
    running: Turn | None
    deleted: bool
    tokens: int
    created_at: float
    updated_at: float

    @property
    def idle(self) -> bool:
        """Whether no turn runs and none waits."""
        return self.running is None and not self.queue

    @property
    def state(self) -> State:
        """`generating` from the acceptance of a turn to the end of the last one that waits."""
        if self.running is not None:
            return "generating"
        if self.queue:
            return "waiting_for_agent" if self.settings.driver == "agent" else "generating"
        return "idle"

    def turn(self, turn_id: str) -> Turn:
        """Return the turn of this id that runs or waits; raises `InvalidTransition` for one that has ended."""
        if self.running is not None and self.running.request.id == turn_id:
            return self.running
        for turn in self.queue:
            if turn.id == turn_id:
                return turn
        raise InvalidTransition(f"turn {turn_id} neither runs nor waits")

    def created_event(self, **origin: str) -> EventDraft:
        """Draft the event that announces the session under its id."""
        settings, size = self.settings.model_dump(), self.history.size
        data = {"settings": settings, "messages": len(self.history), "size": size, "life": self.nonce, **origin}
        return EventDraft(self.id, "session.created", data)


class Change(Protocol):
    """One change of a session."""

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Alter the state, as of a time in seconds since the epoch; return the events that show it."""


class Record(NamedTuple):
    """A change as a listener gets it, just before it is made: of which session (by its key), when, and what."""

    key: str
    at: float
    change: Change


# -- the session itself -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Created:
    """A session comes to be: the first change of each.

    `key` stays when the session is renamed. `life` tells it apart from others of the same name. `owner` is the account
    that it counts for.
    """

    id: str
    key: str
    life: str
    owner: str
    settings: Settings
    history: Weighed = NO_MESSAGES
    window: Window = WHOLE
    forked_from: str | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Fill in an empty state."""
        session.id, session.key, session.nonce, session.settings = self.id, self.key, self.life, self.settings
        session.history = History(session.account, self.history, at)
        session.history.window = self.window
        session.queue, session.running, session.deleted, session.tokens = deque(), None, False, 0
        session.created_at = session.updated_at = at
        session.account.add(sessions=1)
        return (session.created_event(**({} if self.forked_from is None else {"forked_from": self.forked_from})),)


@dataclass(frozen=True, slots=True)
class Renamed:
    """A session takes another id; the log, the history and the turns stay (S14)."""

    id: str

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Readers of the old id learn that it is gone, those of the new one that it is there."""
        old, session.id = session.id, self.id
        gone = EventDraft(old, "session.deleted", {"renamed_to": self.id})
        return gone, session.created_event(renamed_from=old)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A session ends, with all of its turns (S2)."""

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Free what it holds."""
        for turn in (session.running, *session.queue):
            if turn is not None:
                turn.enter(TurnState.CANCELLED)
        session.account.add(sessions=-1, size=-sum(turn.waiting_bytes for turn in session.queue))
        session.running = None
        session.queue.clear()
        session.history.release(at)
        session.deleted = True
        return (EventDraft(session.id, "session.deleted", {}),)


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Turns that have not begun get other settings (S9)."""

    settings: Settings

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Replace the settings."""
        session.settings = self.settings
        return (EventDraft(session.id, "settings.changed", {"settings": self.settings.model_dump()}),)


@dataclass(frozen=True, slots=True)
class StateAnnounced:
    """Readers are told what the session is doing now; `turn` is the turn that it is about."""

    turn: str | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Nothing changes but the time of the last event."""
        data: dict[str, Any] = {"state": session.state, "queued": len(session.queue)}
        if self.turn is not None:
            data["turn"] = self.turn
        if session.state == "waiting_for_agent":
            data["detail"] = "no agent attached"
        return (EventDraft(session.id, "state.changed", data),)


@dataclass(frozen=True, slots=True)
class TokensSpent:
    """The session has used the model outside of a turn's reply, for a summary."""

    usage: Usage

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Count the tokens."""
        session.tokens += self.usage.prompt_tokens + self.usage.completion_tokens
        return ()


# -- the history ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """A message is appended while a turn runs; `opens` is true for the turn's own message."""

    message: Message
    turn: str
    opens: bool = False

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Append it; a turn's own message no longer counts as waiting."""
        if self.opens:
            turn = session.turn(self.turn)
            session.account.add(size=-turn.waiting_bytes)
            turn.base = len(session.history)
        index = session.history.append(self.message, at)
        message = self.message.model_dump(exclude_defaults=True)
        data = {"turn": self.turn, "index": index, "message": message, "size": session.history.size}
        return (EventDraft(session.id, "message.added", data),)


@dataclass(frozen=True, slots=True)
class HistoryReplaced:
    """The history becomes another one (S14)."""

    history: Weighed
    window: Window = WHOLE

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:
        """Replace it."""
        session.history.replace(self.history, at)
        session.history.window = self.window
        data = {"messages": len(session.history), "size": session.history.size}
        return (EventDraft(session.id, "history.replaced", data),)


@dataclass(frozen=True, slots=True)
class ContextShifted:
    """Prompts begin at another message from now on, without about so many `tokens` (S8)."""

    turn: str
    window: Window
    tokens: int

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Move the window of the history that prompts show."""
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
    """A message is in no later prompt: it is too long by itself (S8)."""

    index: int

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Leave it out of the window."""
        window = session.history.window
        session.history.window = replace(window, oversized=window.oversized | {self.index})
        return ()


# -- turns ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnQueued:
    """A message is accepted and waits (S4); it has a `base` if it is in the history already."""

    request: TurnRequest
    base: int | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Put it at the end of the queue."""
        turn = Turn(self.request, self.base)
        session.account.add(size=turn.waiting_bytes)
        session.queue.append(turn)
        return ()


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The first turn of the queue begins: answered by the model, or by an agent under a lease (S10)."""

    turn: str
    lease: Lease | None = None

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Take it out of the queue."""
        turn = session.turn(self.turn)
        turn.enter(TurnState.RUNNING if self.lease is None else TurnState.LEASED)
        turn.lease = self.lease
        session.queue.remove(turn)
        session.running = turn
        return (EventDraft(session.id, "turn.started", {"turn": self.turn}),)


@dataclass(frozen=True, slots=True)
class ReplyExtended:
    """There is more of the running turn's reply."""

    turn: str
    delta: Delta

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Add to the reply."""
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
    """The agent that answers a turn has more time."""

    turn: str
    lease: Lease

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Replace the lease."""
        session.turn(self.turn).lease = self.lease
        return ()


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The agent that answers a turn is taken for dead: its partial reply is dropped, and the turn waits again."""

    turn: str

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Put the turn back to the head of the queue; whole messages that the agent has added stay."""
        turn = session.turn(self.turn)
        turn.enter(TurnState.QUEUED)
        turn.said.clear()
        session.running = None
        session.queue.appendleft(turn)
        return ()


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The engine is asked to stop the running turn (S12)."""

    turn: str

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Note it: a turn is cancelled once."""
        session.turn(self.turn).enter(TurnState.CANCELLING)
        return ()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn, running or waiting, is over; its reply, if it has one, is in the history already.

    `error` says why it failed. A message that wanted no reply ends without an event.
    """

    turn: str
    reason: FinishReason
    reply: str = ""
    usage: Usage = _NO_TOKENS
    error: str | None = None
    announced: bool = True

    @property
    def state(self) -> TurnState:
        """The last state of the turn."""
        if self.error is not None:
            return TurnState.FAILED
        return TurnState.CANCELLED if self.reason == "cancelled" else TurnState.FINISHED

    def apply(self, session: SessionState, at: float) -> Sequence[EventDraft]:  # noqa: ARG002
        """Count its tokens and let it go."""
        turn, usage = session.turn(self.turn), self.usage
        turn.enter(self.state)
        if turn is session.running:
            session.running = None
        else:
            session.account.add(size=-turn.waiting_bytes)
            session.queue.remove(turn)
        session.tokens += usage.prompt_tokens + usage.completion_tokens
        if not self.announced:
            return ()
        data = {"turn": self.turn, "reply": self.reply, "finish_reason": self.reason, "usage": usage.model_dump()}
        if self.error is None:
            return (EventDraft(session.id, "turn.finished", data),)
        return (EventDraft(session.id, "turn.failed", data | {"error": self.error}),)
