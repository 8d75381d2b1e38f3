"""One session: its history, its queue of turns, and the one turn that runs (S2-S8, S12).

Everything here runs on the server's event loop, between awaits nobody else does; so a session needs no lock. The turns
of a session run strictly one after the other: `advance` starts the next one only when none is running.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from cfs.errors import Conflict, Forbidden, Gone, StorageFull, TooMany
from cfs.wire import EventType, FinishReason, Message, SessionInfo, Settings, SettingsPatch, State, ToolCall, Usage
from cfs_server.engine.interface import Delta, Engine
from cfs_server.pulse import Pulse
from cfs_server.sessions.accounts import Account
from cfs_server.sessions.answering import answer
from cfs_server.sessions.events import Event, EventBus
from cfs_server.sessions.history import History, Weighed, Window, error_reply
from cfs_server.sessions.limits import Limits
from cfs_server.sessions.turns import Turn, TurnResult, kind_of

_log = structlog.get_logger(__name__)

CANCELLED = "[Cancelled]"
_RETRY_SECONDS = 1.0
_ANNOUNCED_EACH = 256
"""Messages of one request that get an event each; with more of them a reader reads the session anew."""


@dataclass(frozen=True, slots=True)
class Services:
    """What a session needs from the store that holds it."""

    engine: Engine
    bus: EventBus
    limits: Limits
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    state_changed: Callable[["Session"], None]
    tools_changed: Callable[["Session"], None]


class Session:
    """A conversation. `key` stays the same when the session is renamed; `id` does not.

    `nonce` names this life of the session, apart from others of the same name; it and the version of the history make
    the name of a view (H3, the ETag of the transcript).
    """

    def __init__(
        self,
        session_id: str,
        services: Services,
        settings: Settings,
        account: Account,
        history: Weighed | None = None,
        **origin: str,
    ) -> None:
        self.id = session_id
        self.account = account
        self.key = uuid.uuid4().hex
        self.settings = settings
        self.history = History(account, history)
        self.queue: deque[Turn] = deque()
        self.running: Turn | None = None
        self.deleted = False
        self.tokens = 0
        self.created_at = self.updated_at = time.time()
        self.changed = Pulse()
        self._services = services
        self.log = services.bus.new_log()
        self.nonce = self.log.nonce
        account.add(sessions=1)
        self._publish_created(**origin)

    # -- what it looks like ---------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """`generating` from the acceptance of a turn to the end of the last one that waits."""
        if self.running is not None:
            return "generating"
        if self.queue:
            return "waiting_for_agent" if self.settings.driver == "agent" else "generating"
        return "idle"

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self.running is None and not self.queue

    @property
    def etag(self) -> str:
        """Name of the present version of the transcript, quoted as HTTP wants it."""
        return f'"{self.nonce}-{self.history.version}"'

    @property
    def partial(self) -> str | None:
        """What the running turn has generated so far."""
        return self.running.text if self.running else None

    def info(self, sub_sessions: int) -> SessionInfo:
        """Describe the session without its messages."""
        return SessionInfo(
            id=self.id,
            state=self.state,
            queued=len(self.queue),
            messages=len(self.history),
            tokens=self.tokens,
            size=self.history.size,
            created_at=self.created_at,
            updated_at=self.updated_at,
            sub_sessions=sub_sessions,
            event=self.log.last,
            etag=self.etag,
        )

    # -- what may be done to it -----------------------------------------------------------------------------------

    def accept(self, turn: Turn) -> Event:
        """Take a message in and answer with the event that announces it; its turn runs when its time comes (S4).

        Raises `TooMany` when the queue is full, or when the engine would not come to it for long, and `Forbidden` when
        its writer would have to replace the history and may not.
        """
        if turn.generate and self.settings.driver == "model":
            wait = self._services.engine.predicted_wait(self.account.owner, kind_of(self.id))
            self._services.limits.check_wait(wait)
        if len(self.queue) >= self._services.limits.queued_turns:
            raise TooMany(
                f"{len(self.queue)} turns wait in this session already; try again when some are answered",
                retry_after=_RETRY_SECONDS,
            )
        if self.idle and (refusal := self._refusal(turn)) is not None:
            raise refusal
        if turn.view is None:
            self.require_room(len(self.queue) + 1)
        waits = not self.idle
        self._count_waiting(turn, turn.cost)
        self.queue.append(turn)
        announced = self.publish_state(turn=turn.id) if waits else None
        event = self.advance()
        return announced or event or self.publish_state(turn=turn.id)

    def require_room(self, more: int) -> None:
        """Raise `StorageFull` when the session may not have so many messages more; replies always find room."""
        most = self._services.limits.messages
        if len(self.history) + more > most:
            raise StorageFull(
                f"session {self.id!r} has {len(self.history)} messages, and {most} are the most: go on in another one,"
                " or replace its transcript by a shorter one"
            )

    def answer_last(self) -> None:
        """Let the last message have its turn, if it is a user's that nothing has answered (S14)."""
        last = self.history.last
        if self.idle and last is not None and last.role == "user":
            turn = Turn(last, base=len(self.history) - 1)
            self.queue.append(turn)
            self.advance()
            if self.running is not turn:
                self.publish_state(turn=turn.id)

    def change_settings(self, patch: SettingsPatch) -> Settings:
        """Change settings for the turns that have not begun (S9)."""
        settings = self.settings.patched(patch)
        if settings != self.settings:
            self.settings = settings
            self.publish("settings.changed", settings=settings.model_dump())
            self.advance()
        return settings

    def replace_history(self, history: Weighed) -> None:
        """Rewrite the history (S14); only between turns."""
        self.require_idle("its history cannot be replaced")
        self._rewrite(history)

    def _rewrite(self, history: Weighed) -> None:
        self.history.replace(history)
        self.publish("history.replaced", messages=len(self.history), size=self.history.size)

    def require_idle(self, consequence: str) -> None:
        """Raise `Conflict` while a turn runs or waits."""
        if not self.idle:
            raise Conflict(f"session {self.id!r} is generating: {consequence}; wait for it, or cancel its turns")

    def settled_history(self) -> Weighed:
        """The history up to the last finished turn: what a copy of a busy session gets (S14)."""
        return self.history.until(self.running.base if self.running else None)

    def cancel(self, *, queued: bool) -> tuple[int, int]:
        """Stop the running turn, and if asked those that wait; returns how many of each (S12)."""
        waiting = list(self.queue) if queued else []
        for turn in waiting:
            self.queue.remove(turn)
            self._end(turn, "cancelled", "")
        running = self.running
        if running is not None and not running.cancelled:
            running.cancelled = True
            if running.task is None:  # an agent's: it learns of it at its next call
                self.finish_turn(running, "cancelled", running.text)
            else:
                self._services.engine.cancel(running.id)
            return 1, len(waiting)
        if waiting:
            self._after_turn()
        return 0, len(waiting)

    def rename(self, new_id: str) -> None:
        """Take another id; the log, the history and the running turn stay (S14)."""
        old_id = self.id
        self.publish("session.deleted", renamed_to=new_id)
        self.id = new_id
        self._publish_created(renamed_from=old_id)

    def delete(self) -> None:
        """End at once: cancel everything, wake everybody who waits (S2)."""
        self.deleted = True
        turns = [turn for turn in (self.running, *self.queue) if turn is not None]
        self.running = None
        self.queue.clear()
        gone = Gone(f"session {self.id!r} has been deleted")
        for turn in turns:
            self._count_waiting(turn, 0)
            if turn.task is not None:
                turn.task.cancel()
            if turn.lease is not None:
                turn.lease.timer.cancel()
            if not turn.result.done():
                turn.result.set_exception(gone)
                turn.result.exception()  # mark as seen: often nobody waits for it
        self._services.engine.forget(self.key)
        self.history.release()
        self.account.add(sessions=-1)
        self.publish("session.deleted")
        self.log.close()
        self.changed.fire()

    def abandon(self, reason: str) -> None:
        """Fail every turn that runs or waits: the server cannot answer it any more."""
        waiting, self.queue = list(self.queue), deque()
        if (running := self.running) is not None:
            if running.task is not None:
                running.task.cancel()
            self.fail_turn(running, reason)
        for turn in waiting:
            if turn.base is None:
                self.add_message(turn.message, turn)
            self.fail_turn(turn, reason)

    # -- turns ----------------------------------------------------------------------------------------------------

    def advance(self) -> Event | None:
        """Begin the next turn if none runs; returns the event of the first message that this adds."""
        first: Event | None = None
        while self.running is None and self.queue:
            turn = self.queue[0]
            if turn.generate and self.settings.driver == "agent":
                break  # an agent will claim it
            self.queue.popleft()
            added = self.begin(turn)
            first = first or added
            if self.running is turn:
                turn.task = self._services.spawn(answer(self, turn, self._services))
        return first

    def begin(self, turn: Turn) -> Event | None:
        """Add the turn's message to the history (once) and mark it as the running one if it wants a reply."""
        added: Event | None = None
        if turn.base is None:
            self._count_waiting(turn, 0)
            if not self._adopt(turn):
                return None
            turn.base = len(self.history)
            added = self.add_message(turn.message, turn)
        if turn.generate:
            self.running = turn
            self.publish("turn.started", turn=turn.id)
        else:
            self._end(turn, "stop", "", announce=False)
        self.publish_state()
        return added

    def _refusal(self, turn: Turn) -> Forbidden | None:
        """Say why the turn cannot begin: its writer may only add, and takes the history for another one."""
        if turn.may_replace or turn.view is None or self.history.beyond(turn.view.messages) is not None:
            return None
        return Forbidden(f"session {self.id!r} holds another conversation, and you may not replace it")

    def _adopt(self, turn: Turn) -> bool:
        """Let the history be what the turn's writer takes for it: the message is an answer to that (H4, S14).

        False when the turn is refused, and over; then nothing has changed.
        """
        turn.failure = self._refusal(turn)
        if turn.failure is not None:
            self._end(turn, "error", "", error=turn.failure.detail)
            return False
        if turn.view is None:
            return True
        new = self.history.beyond(turn.view.messages)
        if new is None or len(new) == len(turn.view.messages) > _ANNOUNCED_EACH:
            self._rewrite(turn.view)
        else:
            self.add_messages(new, turn)
        return True

    def add(self, turn: Turn, delta: Delta) -> None:
        """Publish what is new of the running turn's reply."""
        turn.said.append(delta)
        more: dict[str, Any] = {"thinking": delta.thinking} if delta.thinking else {}
        if delta.calls:
            more["calls"] = [asdict(call) for call in delta.calls]
        self.publish("token", turn=turn.id, text=delta.text, tokens=delta.tokens, **more)

    def add_message(self, message: Message, turn: Turn) -> Event:
        """Append a message and announce it."""
        index = self.history.append(message)
        said = message.model_dump(exclude_defaults=True)
        return self.publish("message.added", turn=turn.id, index=index, message=said, size=self.history.size)

    def shift(self, turn: Turn, window: Window, tokens: int) -> None:
        """Begin prompts at another message from now on, and say what has left them (S8)."""
        left = self.history.count_between(self.history.window, window.cut)
        self.history.window = window
        summary = {"summary": window.summary} if window.summary else {}
        self.publish("context.shifted", turn=turn.id, messages=left, tokens=tokens, begin=window.cut, **summary)

    def add_messages(self, messages: Sequence[Message], turn: Turn) -> None:
        """Append messages and announce them: each, or very many as another history."""
        if len(messages) > _ANNOUNCED_EACH:
            window = self.history.window
            self._rewrite(self.history.extended(messages))
            self.history.window = window
            return
        for message in messages:
            self.add_message(message, turn)

    def note_tools(self) -> None:
        """Note that an agent has called tools, or has their results."""
        self._services.tools_changed(self)

    def finish_turn(self, turn: Turn, reason: FinishReason, text: str, usage: Usage | None = None) -> None:
        """Append the reply, stripped (S5), and go on with the next turn."""
        content = text.strip()
        if reason == "cancelled":
            content = f"{content} {CANCELLED}".lstrip()
        reply = turn.reply(content, cut=reason != "stop")
        self.add_message(reply, turn)
        self._end(turn, reason, content, usage, calls=reply.tool_calls)
        self._after_turn()

    def fail_turn(self, turn: Turn, reason: str, usage: Usage | None = None) -> None:
        """Append the error as the reply (S5) and go on with the next turn."""
        _log.warning("turn.failed", session=self.id, turn=turn.id, reason=reason)
        reply = error_reply(reason)
        self.add_message(reply, turn)
        self._end(turn, "error", reply.content, usage, error=reason)
        self._after_turn()

    def _end(
        self,
        turn: Turn,
        reason: FinishReason,
        reply: str,
        usage: Usage | None = None,
        *,
        error: str | None = None,
        announce: bool = True,
        calls: tuple[ToolCall, ...] = (),
    ) -> None:
        usage = usage or Usage()
        self.spend(usage)
        self._count_waiting(turn, 0)
        if announce:
            kind: EventType = "turn.failed" if error is not None else "turn.finished"
            detail = {"error": error} if error is not None else {}
            self.publish(kind, turn=turn.id, reply=reply, finish_reason=reason, usage=usage.model_dump(), **detail)
        if turn.lease is not None:
            turn.lease.timer.cancel()
        if self.running is turn:
            self.running = None
        if not turn.result.done():
            turn.result.set_result(TurnResult(reply, reason, usage, self.log.last, len(self.history), error, calls))

    def spend(self, usage: Usage) -> None:
        """Count the tokens of a finished generation."""
        self.tokens += usage.prompt_tokens + usage.completion_tokens

    def _count_waiting(self, turn: Turn, size: int) -> None:
        self.account.add(size=size - turn.waiting_bytes)
        turn.waiting_bytes = size

    def _after_turn(self) -> None:
        self.advance()
        if self.running is None:
            self.publish_state()

    # -- events ---------------------------------------------------------------------------------------------------

    def publish(self, kind: EventType, **data: Any) -> Event:
        """Number an event of this session and tell everybody who follows."""
        event = self._services.bus.publish(self.log, kind, self.id, data)
        self.updated_at = event.time
        return event

    def _publish_created(self, **origin: str) -> None:
        settings = self.settings.model_dump()
        self.publish(
            "session.created",
            settings=settings,
            messages=len(self.history),
            size=self.history.size,
            life=self.nonce,
            **origin,
        )

    def publish_state(self, **data: Any) -> Event:
        """Say what the session is doing now, and wake who waits for it to settle (S7, S13)."""
        if self.state == "waiting_for_agent":
            data["detail"] = "no agent attached"
        event = self.publish("state.changed", state=self.state, queued=len(self.queue), **data)
        self._services.state_changed(self)
        return event

    def check_integrity(self) -> None:
        """Raise `AssertionError` where the parts of the session contradict one another."""
        self.history.check_integrity()
        self.log.check_integrity()
        if self.running is None and self.queue and self.settings.driver == "model":
            raise AssertionError(f"{self.id}: turns wait and none runs")
        if self.running is not None and (self.running.task is None) == (self.running.lease is None):
            raise AssertionError(f"{self.id}: a running turn belongs to a task or to a lease, and to one of them only")
        if self.deleted and not self.idle:
            raise AssertionError(f"{self.id}: deleted and busy")
