"""One session: its queue of turns, the running turn, and its answer by the model or an agent (S2-S8, S10, S12).

All code runs on the server's event loop. No change contains an await, so a session needs no lock. The turns of a
session run strictly one after the other: `advance` starts the next turn only when none is running.

`sessions.state` defines the state and how each change alters it. This module decides which changes to apply, and
manages tasks, timers, the engine and waiters.
"""

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import structlog

from cfs.errors import (
    CfsError,
    Conflict,
    EngineError,
    Forbidden,
    InvalidParameters,
    InvalidSettings,
    NotFound,
    StorageFull,
    TooMany,
    Unavailable,
    departed,
)
from cfs.wire import (
    LEASE_SECONDS,
    AgentWork,
    CallDecision,
    FinishReason,
    Message,
    NewQuestion,
    SessionInfo,
    Settings,
    SettingsPatch,
    ToolCall,
    Usage,
)
from cfs_server.base.broadcast import Broadcast
from cfs_server.domain.authors import author
from cfs_server.domain.changes import (
    CallDecided,
    CancelRequested,
    Created,
    Deleted,
    HistoryReplaced,
    LeaseExpired,
    LeaseRenewed,
    MessageAdded,
    QuestionAsked,
    QuestionClosed,
    Record,
    Renamed,
    ReplyExtended,
    Rewind,
    SessionChange,
    SettingsChanged,
    StateAnnounced,
    TurnEnded,
    TurnInterrupted,
    TurnQueued,
    TurnStarted,
    WorkReported,
)
from cfs_server.domain.events import EventBus, EventLog, LoggedEvent
from cfs_server.domain.history import History, error_reply
from cfs_server.domain.message_sizes import MESSAGE_COST, cost_of, cost_of_value
from cfs_server.domain.questions import MOST_OPEN, Question, QuestionState, already_closed, open_questions
from cfs_server.domain.quotas import StorageUsage, StoreLimits
from cfs_server.domain.state import Head, SessionState, cost_of_work, shared
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import CANCELLED, Lease, Turn, TurnRequest, TurnResult, TurnState, kind_of
from cfs_server.engine.contract.interface import Delta, Engine, predicted_wait
from cfs_server.sessions.attendance import AGENT_SECONDS, Attendance
from cfs_server.sessions.spending import Spending

_RETRY_SECONDS = 1.0
_ANNOUNCED_EACH = 256
"""Maximum number of messages of one request with an event each. For more, readers fetch the session again."""
_GRACE = LEASE_SECONDS
"""Seconds for which an agent keeps a turn that it took back late, until its call has set a new lease."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """What a session needs from its store.

    `record` receives each change and returns its sequence number. `root_key` returns the key of the root of a session's
    tree, `attended` whether an agent answers in it. `answer` lets the model answer a turn. `models` are the names that
    the setting `model` may have; if it is empty, they are not known.
    """

    engine: Engine
    bus: EventBus
    limits: StoreLimits
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    state_changed: Callable[["Session"], None]
    tools_changed: Callable[["Session"], None]
    record: Callable[["Session", Record], int]
    root_key: Callable[["Session"], str]
    attended: Callable[["Session"], bool]
    answer: Callable[["Session", Turn, "Services"], Coroutine[Any, Any, None]]
    spending: Spending
    models: Collection[str] = ()
    clock: Callable[[], float] = time.time

    def check_model(self, patch: SettingsPatch) -> None:
        """Raise `InvalidSettings` if a change names a model that the server does not have."""
        if patch.model is not None and self.models and patch.model not in self.models:
            reason = f"there is no model {patch.model!r} here; there are {', '.join(self.models)}"
            raise InvalidSettings(reason, errors=[{"at": "model", "message": reason}])


class Session(SessionState):
    """A conversation. `key` stays the same when the session is renamed; `id` does not.

    `nonce` distinguishes this session from others with the same id at other times. The ETag of the transcript consists
    of the nonce and the version of the history (H3).
    """

    __slots__ = ("_services", "attendance", "changed", "log")

    def __init__(
        self, created: Created, services: Services, account: StorageUsage, recorded: tuple[int, Record] | None = None
    ) -> None:
        """Create a session, or the session of a record, which has a sequence number."""
        self._attach(created.key, services, account, services.bus.new_log(created.life, created.key))
        if recorded is None:
            self.apply(created)
        else:
            self.redo(*recorded)

    @classmethod
    def restored(cls, head: Head, services: Services, account: StorageUsage) -> Self:
        """Return the session of a stored head, with its turns as they were. The caller resumes them."""
        session = cls.__new__(cls)
        session._attach(head.key, services, account, services.bus.new_log(head.life, head.key, head.number))  # noqa: SLF001
        session.id, session.nonce, session.settings = head.id, head.life, shared(head.settings)
        session.history = History.restored(account, head.history)
        session.queue = [Turn.restored(turn) for turn in head.queue]
        session.running = None if head.running is None else Turn.restored(head.running)
        session.deleted, session.tokens, session.cost = False, head.tokens, head.cost
        session.created_at, session.updated_at = head.created_at, head.updated_at
        session.seq, session.begins_at = head.seq, head.history.begins_at
        session.questions = {question.id: question for question in head.questions}
        session.origin, session.work = head.origin, head.work
        account.add(sessions=1, size=session.waiting_bytes)
        return session

    def _attach(self, key: str, services: Services, account: StorageUsage, log: EventLog) -> None:
        self.key = key
        self.account = account
        self.changed = Broadcast()
        self.log = log
        self.seq = self.begins_at = 0
        self._services = services
        self.attendance = Attendance()

    def head(self) -> Head:
        """Return the state without the messages."""
        return Head(
            self.seq,
            self.key,
            self.id,
            self.nonce,
            self.account.owner,
            self.settings,
            self.created_at,
            self.updated_at,
            self.tokens,
            self.log.last,
            self.history.head(self.begins_at),
            None if self.running is None else self.running.head(),
            tuple(turn.head() for turn in self.queue),
            tuple(self.questions.values()),
            self.origin,
            self.cost,
            self.work,
        )

    def apply(self, change: SessionChange) -> LoggedEvent | None:
        """Apply a change: the only way to change a session's state. Return the last event of the change."""
        at, bus = self._services.clock(), self._services.bus
        events = [bus.publish(self.log, draft.type, draft.session, draft.data, at) for draft in change.apply(self, at)]
        record = Record(self.key, at, change, tuple(events), author.get(), self.log.last, bus.log.last)
        self._note(self._services.record(self, record), record)
        return events[-1] if events else None

    def redo(self, seq: int, record: Record) -> None:
        """Apply a recorded change. There are no other effects: its events are not published, and no turn begins."""
        record.change.apply(self, record.at)
        self.log.skip_to(record.number)
        self._note(seq, record)

    def _note(self, seq: int, record: Record) -> None:
        self.seq = seq
        if record.events:
            self.updated_at = record.at
        if isinstance(record.change, Created | HistoryReplaced):
            self.begins_at = seq

    def publish_state(self, turn: str | None = None) -> LoggedEvent:
        """Publish the current state, and wake the waiters for a settled session (S7, S13)."""
        attended = self.state == "waiting_for_agent" and self._services.attended(self)
        event = self.apply(StateAnnounced(turn, attended))
        assert event is not None  # noqa: S101 - this change publishes an event
        self._services.state_changed(self)
        if attended:
            first = self.queue[0]
            first.stop_timer()
            first.timer = asyncio.get_running_loop().call_later(AGENT_SECONDS, self._report_unclaimed, first)
        return event

    def _report_unclaimed(self, turn: Turn) -> None:
        if self.state == "waiting_for_agent" and self.queue[0] is turn:  # no agent is attached any more
            self.apply(StateAnnounced(turn.id))
            self._services.state_changed(self)

    @property
    def etag(self) -> str:
        """The ETag of the current transcript, quoted."""
        return f'"{self.nonce}-{self.history.version}"'

    @property
    def partial(self) -> str | None:
        """The text that the running turn has generated so far."""
        return self.running.text if self.running else None

    def info(self, sub_sessions: int) -> SessionInfo:
        """Return the session without its messages."""
        return SessionInfo(
            id=self.id,
            state=self.state,
            queued=len(self.queue),
            messages=len(self.history),
            tokens=self.tokens,
            cost=self.cost,
            turn_since=next((turn.request.accepted_at for turn in (self.running, *self.queue) if turn), None),
            size=self.history.size,
            created_at=self.created_at,
            updated_at=self.updated_at,
            sub_sessions=sub_sessions,
            event=self.log.last,
            etag=self.etag,
            open_questions=len(open_questions(self.questions)),
            failed=self.history.failed,
            title=self.title,
            origin=self.origin,
        )

    def settled_history(self) -> SizedMessages:
        """Return the history up to the last finished turn, for a copy of a busy session (S14)."""
        return self.history.until(self.running.base if self.running else None)

    def require_room(self, more: int) -> None:
        """Raise `StorageFull` if the session may not have this many more messages. Replies are always accepted."""
        max_messages = self._services.limits.messages
        if len(self.history) + more > max_messages:
            raise StorageFull(
                f"session {self.id!r} has {len(self.history)} messages, and {max_messages} are the most: go on in"
                " another one, or replace its transcript by a shorter one"
            )

    def require_idle(self, consequence: str) -> None:
        """Raise `Conflict` while a turn runs or waits."""
        if not self.idle:
            raise Conflict(f"session {self.id!r} is generating: {consequence}; wait for it, or cancel its turns")

    def accept(self, request: TurnRequest) -> tuple[Turn, LoggedEvent]:
        """Accept a message. Return its turn and the event that announces it. The turn starts in the order of the queue
        (S4).

        The history must be loaded; it stays so until the turn has ended.

        Raises `TooMany` if the queue is full or the predicted wait for the engine is too long, and `Forbidden` if the
        writer would have to replace the history without the right to do so.
        """
        self.history.require_loaded()
        if request.generate and self.settings.driver == "model":
            model = request.model(self.settings)
            wait = predicted_wait(self._services.engine, model, self.account.owner, kind_of(self.id))
            self._services.limits.check_wait(wait)
            self._services.spending.check(self.account, model, self.settings, self)
        if len(self.queue) - self._is_delayed >= self._services.limits.queued_turns:
            raise TooMany(
                f"{len(self.queue)} turns wait in this session already; try again when some are answered",
                retry_after=_RETRY_SECONDS,
            )
        if self.idle and (refusal := self._refusal(request)) is not None:
            raise refusal
        if request.view is None:
            self.require_room(len(self.queue) + 1)
        waits = not self.idle
        self.apply(TurnQueued(replace(request, author=author.get())))
        turn = self.queue[-1]
        if request.delay and not waits and request.view is None:
            added = self._open(turn)
            self._delay(turn)
            return turn, added or self.publish_state(turn.id)
        announced = self.publish_state(turn.id) if waits else None
        event = self.advance()
        return turn, announced or event or self.publish_state(turn.id)

    def answer_last(self, delay: float = 0.0) -> None:
        """Start a turn for the last message if it is an unanswered user message (S14), after a delay in seconds."""
        last = self.history.last
        if self.idle and last is not None and last.role == "user":
            self.apply(TurnQueued(TurnRequest(last, delay=delay), base=len(self.history) - 1))
            turn = self.queue[-1]
            if delay:
                self._delay(turn)
                return
            self.advance()
            if self.running is not turn:
                self.publish_state(turn.id)

    def _delay(self, turn: Turn) -> None:
        """Begin the only turn after its delay. The message is in the history already, so that readers see it."""
        turn.delayed, turn.timer = True, asyncio.get_running_loop().call_later(turn.request.delay, self.hurry)
        self.publish_state(turn.id)

    def hurry(self) -> None:
        """Begin a delayed turn now: its delay is over, or a client waits for its reply."""
        if self._is_delayed:
            self.queue[0].stop_timer()
            self.advance()

    @property
    def _is_delayed(self) -> bool:
        return bool(self.queue) and self.queue[0].delayed

    def check_settings(self, patch: SettingsPatch) -> None:
        """Raise `InvalidSettings` if a setting cannot be set here."""
        self._services.check_model(patch)

    def change_settings(self, patch: SettingsPatch) -> Settings:
        """Change the settings for turns that have not started (S9). Raises `InvalidSettings`."""
        self.check_settings(patch)
        settings = self.settings.patched(patch)
        if settings != self.settings:
            self.apply(SettingsChanged(settings))
            self.advance()
            self.changed.fire()  # agents that wait for a turn learn that the model answers now
        return settings

    def replace_history(self, history: SizedMessages) -> None:
        """Replace the history (S14). Only allowed between turns."""
        self.require_idle("its history cannot be replaced")
        self.apply(HistoryReplaced(history))

    def rewind(self, history: SizedMessages, how: Rewind) -> None:
        """Take the history back to that of an earlier version, unless only files go back. Only between turns."""
        self.require_idle("it cannot be rewound")
        if how.messages:
            self.apply(HistoryReplaced(history, rewind=how))
        else:
            self.apply(HistoryReplaced(self.history.until(None), self.history.window, how))

    def cancel(self, *, queued: bool) -> tuple[int, int]:
        """Stop the running turn, and the waiting ones if `queued`. Return how many of each (S12)."""
        waiting = [turn for turn in self.queue if queued or turn.delayed]
        for turn in waiting:
            self._end(turn, "cancelled")
        running = self.running
        if running is not None and running.state is not TurnState.CANCELLING:
            if running.state is TurnState.LEASED:  # its next call informs the agent
                self.finish_turn(running, "cancelled", running.unstored)
            else:
                self.apply(CancelRequested(running.id))
                self._services.engine.cancel(running.id)
            return 1, len(waiting)
        if waiting:
            self._after_turn()
        return 0, len(waiting)

    def cancel_turn(self, turn: Turn) -> None:
        """Stop one turn that runs or waits (S12)."""
        if turn is self.running:
            self.cancel(queued=False)
            return
        self._end(turn, "cancelled")
        if self.running is None:
            self._after_turn()

    def rename(self, new_id: str) -> None:
        """Change the id. The log, the history and the running turn stay (S14)."""
        self.apply(Renamed(new_id))
        self.changed.fire()  # those who wait may have lost their rights

    def delete(self) -> None:
        """End the session at once: cancel all turns and wake the waiters (S2)."""
        turns = self._turns
        self.apply(Deleted())
        self.log.close()
        self._leave(turns, departed(self.id))

    def close(self) -> None:
        """End with the store, without a change: the next start of a durable one goes on with the session.

        An event of this end would not be stored, and the next start would give its number to another one.
        """
        turns = self._turns
        Deleted().apply(self, self._services.clock())
        self.log.close(goodbye=True)
        self._leave(turns, _shutting_down())

    def say_goodbye(self) -> None:
        """End all streams and waits, because the server shuts down. The session can still be read."""
        self.log.close(goodbye=True)
        self.changed.fire()

    def _leave(self, turns: Iterable[Turn], reason: CfsError) -> None:
        """Stop what were the turns, and wake all who wait."""
        for turn in turns:
            _stop(turn, reason)
        self.changed.fire()

    def require_going_on(self) -> None:
        """Raise `Gone` or `Unavailable` if the session cannot be waited for any more."""
        if self.deleted and not self.log.goodbye:
            raise departed(self.id)
        if self.log.closed:
            raise _shutting_down()

    @property
    def _turns(self) -> list[Turn]:
        return [turn for turn in (self.running, *self.queue) if turn is not None]

    def resume(self) -> str | None:
        """Continue after a restart: begin the interrupted turn again, or keep the lease of its agent for a while.

        Returns what became of the running turn, for the log.
        """
        turn = self.running
        if turn is None:
            self.advance()
            return None
        if turn.state is TurnState.LEASED:
            left = _GRACE if turn.lease is None else turn.lease.expires_at - self._services.clock()
            self._start_timer(turn, max(left, _GRACE))
            return "leased"
        if turn.state is TurnState.CANCELLING:
            self.finish_turn(turn, "cancelled", turn.text)
            return "cancelled"
        self.apply(TurnInterrupted(turn.id))
        self.advance()
        return "begun again"

    def suspend(self, reason: CfsError) -> None:
        """Stop all work without a change: the next start resumes it. Waiters get the reason."""
        for turn in self._turns:
            _stop(turn, reason)

    def abandon(self, reason: str) -> None:
        """Fail all running and waiting turns, because the server shuts down."""
        for turn in self._turns:
            if turn.task is not None:
                turn.task.cancel()
            if turn.base is None:
                self._open(turn)
            self._fail(turn, EngineError(reason))
        self.publish_state()

    def advance(self) -> LoggedEvent | None:
        """Start the next turn if none runs. Return the event of the first message that this adds."""
        first: LoggedEvent | None = None
        while self.running is None and self.queue:
            turn = self.queue[0]
            if turn.delayed or (turn.generate and self.settings.driver == "agent"):
                break  # its delay ends, or an agent will claim it
            added = self._begin(turn)
            first = first or added
            if self.running is turn:
                turn.task = self._services.spawn(self._services.answer(self, turn, self._services))
        return first

    def _begin(self, turn: Turn, lease: Lease | None = None) -> LoggedEvent | None:
        """Add the message of the first queued turn to the history (once), and start the turn if it requires a reply.

        Returns the event of the message. A refused turn ends here and changes nothing else.
        """
        added: LoggedEvent | None = None
        turn.delayed = False
        if turn.base is None:
            if (refusal := self._refusal(turn.request)) is not None:
                self._end(turn, "error", failure=refusal)
                return None
            self._adopt(turn)
            added = self._open(turn)
        if turn.generate:
            self.apply(TurnStarted(turn.id, lease))
        else:
            self._end(turn, "stop", announced=False)
        self.publish_state()
        return added

    def _open(self, turn: Turn) -> LoggedEvent | None:
        """Add the message of a turn to the history, in the name of its writer. Return its event."""
        token = author.set(turn.request.author)
        try:
            return self.apply(MessageAdded(turn.message, turn.id, opens=True))
        finally:
            author.reset(token)

    def _refusal(self, request: TurnRequest) -> Forbidden | None:
        """Return why a turn cannot start: its writer may only append but expects another history."""
        if request.may_replace or request.view is None or self.history.beyond(request.view.messages) is not None:
            return None
        return Forbidden(f"session {self.id!r} holds another conversation, and you may not replace it")

    def _adopt(self, turn: Turn) -> None:
        """Make the history equal to the writer's view before the message (H4, S14)."""
        view = turn.request.view
        if view is None:
            return
        new = self.history.beyond(view.messages)
        if new is None or len(new) == len(view.messages) > _ANNOUNCED_EACH:
            self.apply(HistoryReplaced(view))
        else:
            self._add_messages(new, turn)

    def _add_messages(self, messages: Sequence[Message], turn: Turn) -> None:
        """Append messages, each with its own event. A large number has one event for all."""
        if len(messages) > _ANNOUNCED_EACH:
            self.apply(HistoryReplaced(self.history.extended(messages), self.history.window))
            return
        for message in messages:
            self.apply(MessageAdded(message, turn.id))

    def add(self, turn: Turn, delta: Delta) -> None:
        """Add a piece to the reply of the running turn."""
        self.apply(ReplyExtended(turn.request.id, delta))

    def begin_again(self, turn: Turn) -> None:
        """Drop the reply of the running turn, and begin it again unless it is cancelled. Readers get
        `turn.interrupted`.
        """
        if turn.state is TurnState.CANCELLING:
            return
        self.apply(TurnInterrupted(turn.id))
        turn.times += 1
        self.apply(TurnStarted(turn.id))

    def finish_turn(self, turn: Turn, reason: FinishReason, text: str, usage: Usage | None = None) -> None:
        """Append the reply, stripped (S5), and start the next turn."""
        content = text.strip()
        if reason == "cancelled":
            content = f"{content} {CANCELLED}".lstrip()
        reply = turn.reply(content, cut=reason not in ("stop", "tool_calls"))
        self.apply(MessageAdded(reply, turn.id))
        self._end(turn, reason, content, usage, calls=reply.tool_calls)
        self._after_turn()

    def fail_turn(self, turn: Turn, failure: CfsError, usage: Usage | None = None) -> None:
        """Append the error as the reply (S5), and start the next turn."""
        self._fail(turn, failure, usage)
        self._after_turn()

    def _fail(self, turn: Turn, failure: CfsError, usage: Usage | None = None) -> None:
        _log.warning("turn.failed", session=self.id, turn=turn.id, reason=failure.detail)
        reply = error_reply(failure.detail)
        self.apply(MessageAdded(reply, turn.id))
        self._end(turn, "error", reply.content, usage, failure=failure)

    def _end(
        self,
        turn: Turn,
        reason: FinishReason,
        reply: str = "",
        usage: Usage | None = None,
        *,
        failure: CfsError | None = None,
        announced: bool = True,
        calls: tuple[ToolCall, ...] = (),
    ) -> None:
        usage = usage or Usage()
        if turn.lease is None and usage != Usage():
            self._services.spending.add(self.account, usage, turn.request.model(self.settings), self)
        error = None if failure is None else failure.detail
        self._withdraw(turn)
        self.apply(TurnEnded(turn.id, reason, reply, usage, error, announced))
        turn.stop_timer()
        if not turn.result.done():
            turn.result.set_result(TurnResult(reply, reason, usage, self.log.last, len(self.history), failure, calls))

    def _after_turn(self) -> None:
        self.advance()
        if self.running is None:
            self.publish_state()

    #
    # An agent claims a turn, works under a lease that each of its calls renews, and finishes the turn. When the lease
    # expires, the agent is considered dead and another one may claim the turn. A late agent gets its turn back with its
    # next call, unless another agent has claimed it. See `attendance` for when an agent counts as attached.

    @property
    def has_agent(self) -> bool:
        """Whether an agent holds a turn, waits for one, or has called a moment ago."""
        return (self.running is not None and self.running.lease is not None) or self.attendance.attached

    def claim(self, lease_seconds: float) -> Turn | None:
        """Lease the next waiting turn to the caller; None if there is none.

        Raises `Conflict` if the session's driver is not `agent`.
        """
        if self.settings.driver != "agent":
            raise Conflict(f"session {self.id!r} is answered by the model; set driver=agent first")
        if self.running is not None:
            return None
        while self.queue:
            turn = self.queue[0]
            self._begin_leased(turn, lease_seconds, Lease.new_secret())
            if self.running is turn:
                return turn
            if not self.queue:
                self.publish_state()
        return None

    def leased(self, turn_id: str, secret: str) -> Turn | None:
        """Return a running or waiting turn for which this lease was given; None if it has ended or has another one."""
        turn = self.find_turn(turn_id)
        return None if turn is None or turn.lease is None or not _same(turn.lease.secret, secret) else turn

    def update(
        self,
        turn_id: str,
        secret: str,
        *,
        text: str,
        messages: Iterable[Message],
        lease_seconds: float,
        work: AgentWork | None = None,
        decisions: Iterable[CallDecision] = (),
        principal: str = "",
    ) -> Turn:
        """Add streamed text or whole messages (tool calls and results), store what the agent says, renew the lease.

        The `principal` who acts for the agent reports `decisions` about calls.

        Raises `NotFound`, `Forbidden` or `StorageFull`.
        """
        turn = self._leased(turn_id, secret)
        added = tuple(messages)
        self.require_room(len(added))
        self.account.require_room(size=sum(map(cost_of, added)))
        for decision in decisions:
            self.apply(CallDecided(turn.id, principal, decision))
        if text:
            self.add(turn, Delta(text, 0))
        self._add_messages(added, turn)
        self._report(turn, work)
        self._services.tools_changed(self)
        self.apply(LeaseRenewed(turn.id, Lease(secret, self._services.clock() + lease_seconds)))
        self._start_timer(turn, lease_seconds)
        return turn

    def _report(self, turn: Turn, work: AgentWork | None) -> None:
        """Store what the agent of a turn says of its work, if it is something else."""
        if work is not None and work != self.work:
            self.account.require_room(size=cost_of_work(work) - cost_of_work(self.work))
            self.apply(WorkReported(turn.id, work))

    def finish(
        self,
        turn_id: str,
        secret: str,
        *,
        reply: str | None,
        error: str | None,
        usage: Usage,
        work: AgentWork | None = None,
    ) -> Turn:
        """Finish the turn with a reply (default: the streamed text) or an error. Return the turn.

        Raises `NotFound`, `Forbidden`, or `StorageFull`. A reply without storage can still be replaced by an error.
        """
        turn = self._leased(turn_id, secret)
        with suppress(StorageFull):  # the end is more important
            self._report(turn, work)
        if error is not None:
            self.fail_turn(turn, EngineError(error), usage)
            return turn
        text = turn.unstored if reply is None else reply
        self.account.require_room(size=MESSAGE_COST + cost_of_value(text))
        self.finish_turn(turn, "stop", text, usage)
        return turn

    def expire(self, turn: Turn) -> None:
        """End an expired lease. Its turn waits for the next claim."""
        if self.running is not turn:
            return
        self.attendance.lost()
        self._withdraw(turn)
        self.apply(LeaseExpired(turn.id))
        turn.stop_timer()
        self.advance()
        self.publish_state(turn.id)

    def _leased(self, turn_id: str, secret: str) -> Turn:
        """Return the turn that the caller has leased. Raises `NotFound` or `Forbidden`."""
        self._take_back(turn_id, secret)
        turn = self.running
        if turn is None or turn.id != turn_id:
            raise NotFound("this turn is not running: it has ended, was cancelled, or its lease ran out")
        if turn.lease is None or not _same(turn.lease.secret, secret):
            raise Forbidden("another agent holds this turn")
        self.attendance.called()
        return turn

    def _take_back(self, turn_id: str, secret: str) -> None:
        """Restart the first waiting turn for an agent whose lease for it has expired."""
        if self.running is not None or not self.queue or self.settings.driver != "agent":
            return
        turn = self.queue[0]
        if turn.id == turn_id and turn.lease is not None and _same(turn.lease.secret, secret):
            self._begin_leased(turn, _GRACE, secret)

    def _begin_leased(self, turn: Turn, seconds: float, secret: str) -> None:
        self._begin(turn, Lease(secret, self._services.clock() + seconds))
        if self.running is turn:
            self._start_timer(turn, seconds)

    def _start_timer(self, turn: Turn, seconds: float) -> None:
        turn.stop_timer()
        turn.timer = asyncio.get_running_loop().call_later(seconds, self.expire, turn)

    def ask(self, new: NewQuestion, asker: str) -> Question:
        """Ask a person, for the agent that holds the running turn.

        Raises `NotFound`, `Forbidden`, `TooMany` or `StorageFull`.
        """
        turn = self.running or next(iter(self.queue), None)
        turn = self._leased("" if turn is None else turn.id, new.claim)
        if len(open_questions(self.questions)) >= MOST_OPEN:
            raise TooMany(f"{MOST_OPEN} questions are open in this session: wait for an answer, or withdraw one")
        question = Question(
            uuid.uuid4().hex,
            turn.id,
            new.text,
            new.choices,
            kind=new.kind,
            directory=new.directory,
            background=new.background,
            asker=asker,
        )
        self.account.require_room(size=question.cost)
        self.apply(QuestionAsked(question))
        return self.questions[question.id]

    def question(self, question_id: str) -> Question:
        """Return an open question, or one of the newest closed ones. Raises `NotFound`."""
        if (question := self.questions.get(question_id)) is None:
            raise NotFound(
                f"session {self.id!r} has no question {question_id!r}: its turn has ended, or it was answered long ago"
            )
        return question

    def answer_question(self, question_id: str, answer: str | None, by: str, secret: str | None = None) -> Question:
        """Answer an open question; without an answer, withdraw it. An agent proves by its `secret` that it asked.

        Raises `Conflict` if it is not open, `NotFound`, `Forbidden` or `InvalidParameters`.
        """
        question = self.question(question_id)
        if question.state is not QuestionState.OPEN:
            raise already_closed(question)
        if secret is not None:
            self._leased(question.turn, secret)
        elif answer is None:
            raise Forbidden("only the agent that has asked a question can withdraw it: send its claim")
        if answer is not None and answer not in question.choices:
            raise InvalidParameters(f"the answer is one of {', '.join(question.choices)}")
        self.apply(QuestionClosed(question_id, answer, by, terminal=secret is not None and answer is not None))
        return self.questions[question_id]

    def _withdraw(self, turn: Turn) -> None:
        """Withdraw the questions of a turn that ends, or whose agent is lost."""
        for question in open_questions(self.questions):
            if question.turn == turn.id:
                self.apply(QuestionClosed(question.id))

    def check_integrity(self) -> None:
        """Raise `AssertionError` if the parts of the session contradict each other."""
        self.history.check_integrity()
        self.log.check_integrity()
        if self.running is None and self.queue and self.settings.driver == "model" and not self._is_delayed:
            raise AssertionError(f"{self.id}: turns wait and none runs")
        if any(turn.state is not TurnState.QUEUED for turn in self.queue):
            raise AssertionError(f"{self.id}: a turn in the queue is not queued")
        if self.running is not None and (self.running.task is None) != (self.running.state is TurnState.LEASED):
            raise AssertionError(f"{self.id}: a running turn belongs to a task or to a lease, and to one of them only")
        asking = {question.turn for question in open_questions(self.questions)}
        if asking - ({self.running.id} if self.running and self.running.state is TurnState.LEASED else set()):
            raise AssertionError(f"{self.id}: a question is open without an agent that waits for its answer")
        if self.deleted and not self.idle:
            raise AssertionError(f"{self.id}: deleted and busy")


def _shutting_down() -> Unavailable:
    return Unavailable("the server is shutting down", retry_after=5)


def _stop(turn: Turn, reason: CfsError) -> None:
    """End the task and the timer of a turn. Its waiters get the reason."""
    if turn.task is not None:
        turn.task.cancel()
    turn.stop_timer()
    if not turn.result.done():
        turn.result.set_exception(reason)
        turn.result.exception()  # mark the exception as retrieved: often there is no waiter


def _same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(), other.encode())
