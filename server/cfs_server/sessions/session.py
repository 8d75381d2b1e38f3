"""One session: its history, its queue of turns, and the one turn that runs (S2-S8, S12).

Everything here runs on the server's event loop, between awaits nobody else does; so a session needs no lock. The turns
of a session run strictly one after the other: `advance` starts the next one only when none is running.
"""

import asyncio
import contextlib
import secrets
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import structlog

from cfs.errors import CfsError, Conflict, ContextTooLong, EngineError, Forbidden, Gone, NotFound, StorageFull, TooMany
from cfs.transcript import render
from cfs.wire import EventType, FinishReason, Message, SessionInfo, Settings, SettingsPatch, State, ToolCall, Usage
from cfs_server.broadcast import Pulse
from cfs_server.engine.fitting import TARGET, leading_systems
from cfs_server.engine.interface import TOO_LONG, Delta, Engine, Finished, GenerationRequest
from cfs_server.sessions.events import Event, EventBus
from cfs_server.sessions.history import MESSAGE_COST, History, Weighed, Window, cost_of, error_reply
from cfs_server.sessions.quotas import Account, Limits
from cfs_server.sessions.turns import Lease, Turn, TurnResult, kind_of

# Letting the engine answer a turn: whatever goes wrong ends in a message, never in a stuck session (S5).
#
# A history that is longer than the model's context is cut (S8): old exchanges leave the prompt, or their summary takes
# their place, until the engine takes it. The cut stays where it is until the prompt is too long again, so that turns in
# between begin with what is computed already.

_log = structlog.get_logger(__name__)

_LATEST = 10.0
"""Seconds after a turn's time in which the engine must have ended it; then it is not waited for any more."""
_CHARACTERS_A_TOKEN = 4
_AGAIN = 0.5
"""How much of its text stays in a prompt that an upstream refused again, without a word of how much it takes."""
_SUMMARIZE = (
    "Summarize the following conversation in a few sentences. Keep names, facts, decisions and open questions.\n\n"
)
_SUMMARY_TOKENS = 128
_SUMMARIZED = 1 << 16
"""Characters of a conversation that a summary is made of, the newest ones."""


async def answer(session: "Session", turn: Turn, services: "Services") -> None:
    """Have the running turn answered, and end it."""
    limit = services.limits.turn_seconds
    try:
        async with asyncio.timeout(limit + _LATEST):
            reason, usage = await _answer(session, turn, services)
    except CfsError as error:
        turn.failure = error
        session.fail_turn(turn, error.detail)
    except TimeoutError:
        session.fail_turn(turn, TOO_LONG.format(limit))
    except Exception:  # noqa: BLE001 - a defect must not leave the session generating for ever
        _log.exception("turn.defect", session=session.id, turn=turn.id)
        session.fail_turn(turn, "internal error")
    else:
        session.finish_turn(turn, reason, turn.text, usage)


async def _answer(session: "Session", turn: Turn, services: "Services") -> tuple[FinishReason, Usage]:
    """Ask the engine, with less and less of the history as long as that is too long for it (S8)."""
    settings, history = session.settings.patched(turn.settings), session.history
    loop, limit = asyncio.get_running_loop(), services.limits.turn_seconds
    ends_at = loop.time() + limit
    window, tokens = _begin(history, settings, services.engine.context_tokens)
    while not turn.cancelled:  # also before this task had its first step: the engine does not know the turn yet
        request = turn.request(
            session.id,
            session.key,
            history.prompt(window),
            session.settings,
            session.account.owner,
            limit if tokens is None else max(round(ends_at - loop.time(), 1), 0.0),
        )
        try:
            return await _stream(session, turn, request, services, window, tokens)
        except ContextTooLong as error:
            if settings.overflow == "error":
                raise
            shorter = _shorten(history, turn, settings, window, error, TARGET if tokens is None else _AGAIN)
            tokens = (tokens or 0) + (error.leaving or _tokens_between(history, window, shorter.cut))
            if settings.overflow == "summarize":
                shorter = replace(shorter, summary=await _summarize(session, request, services, shorter))
            window = shorter
    return "cancelled", Usage()


def _begin(history: History, settings: Settings, most: int) -> tuple[Window, int | None]:
    """Say with which part of a history to begin, and about how many tokens are left out by that if any are.

    A prompt has no more messages than the context has tokens (`most`, if it is known): no more are looked at.
    """
    if settings.overflow == "error":
        if 0 < most < len(history):
            raise ContextTooLong(f"the prompt has {len(history)} messages; the model's context holds {most} tokens")
        return Window(), None
    window = history.window if settings.overflow == "summarize" else replace(history.window, summary="")
    bounded = history.bounded(window, most) if most else window
    return bounded, None if bounded is window else _tokens_between(history, window, bounded.cut)


def _tokens_between(history: History, window: Window, cut: int) -> int:
    """Guess how many tokens leave a window that is cut anew, as if all messages were of the same length."""
    return history.size * history.count_between(window, cut) // len(history) // _CHARACTERS_A_TOKEN


async def _stream(
    session: "Session", turn: Turn, request: GenerationRequest, services: "Services", window: Window, tokens: int | None
) -> tuple[FinishReason, Usage]:
    finished: Finished | None = None
    async for item in services.engine.generate(request):
        if tokens is not None:  # the engine has taken what is left
            session.shift(turn, window, tokens)
            tokens = None
        if isinstance(item, Delta):
            session.add(turn, item)
        else:
            finished = item
    if finished is None:
        raise EngineError("the engine ended without saying why")
    return finished.reason, finished.usage


def _shorten(
    history: History, turn: Turn, settings: Settings, window: Window, error: ContextTooLong, part: float
) -> Window:
    """Cut a window so that its prompt fits, as the engine says or else to a part of the text.

    Raises `ContextTooLong` when even the last exchange does not fit. A message that is too long by itself is in no
    later prompt: it would drive out everything before it.
    """
    starts = history.exchanges(window)
    if error.fits != 0 and len(starts) > 1:
        fits = _guess(history, starts, part) if error.fits is None else error.fits
        return replace(window, cut=starts[-max(1, min(fits, len(starts) - 1))])
    if window.summary:
        return replace(window, summary="")
    first = history.messages[: leading_systems(history.messages)]
    instructions = len(settings.system or "") + sum(len(message.content) for message in first)
    if turn.base is not None and len(turn.message.content) > instructions:
        history.window = replace(history.window, oversized=history.window.oversized | {turn.base})
        raise ContextTooLong(f"the message is too long by itself: {error.detail}")
    raise error


def _guess(history: History, starts: Sequence[int], part: float) -> int:
    """Count the newest exchanges that have this part of the text of all."""
    messages = history.messages
    sizes = [
        sum(len(message.content) for message in messages[start:end])
        for start, end in pairwise([*starts, len(messages)])
    ]
    room = part * sum(sizes)
    return sum(size <= room for size in accumulate(reversed(sizes)))


async def _summarize(session: "Session", request: GenerationRequest, services: "Services", window: Window) -> str:
    """Have the model write the summary of what is before a window; where it cannot, the one before stays."""
    before = session.history.window
    left = session.history.leaving(before, window.cut, _SUMMARIZED)
    if not left:
        return window.summary
    text = (f"{before.summary}\n\n" if before.summary else "") + render(left)
    key = f"{request.cache_key}/summary"
    try:
        for characters in (_SUMMARIZED, _SUMMARIZED // 8, _SUMMARIZED // 64):
            wanted = GenerationRequest(
                request.id,
                key,
                (Message(role="user", content=_SUMMARIZE + text[-characters:]),),
                Settings(max_tokens=_SUMMARY_TOKENS, temperature=0.0),
                owner=request.owner,
                account=request.account,
                kind=request.kind,
                deadline_seconds=request.deadline_seconds,
            )
            with contextlib.suppress(ContextTooLong):
                said = [item async for item in services.engine.generate(wanted)]
                session.spend(said[-1].usage if isinstance(said[-1], Finished) else Usage())
                summary = "".join(item.text for item in said if isinstance(item, Delta)).strip()
                return summary or before.summary
    except EngineError as error:
        _log.warning("summary.failed", session=session.id, reason=error.detail)
    finally:
        services.engine.forget(key)
    return before.summary


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


# Sessions that an agent answers (S10): it claims a turn, works under a lease that it renews, and finishes the turn.
#
# When the lease runs out the agent is taken for dead: the text it had streamed is dropped, the messages it had
# completed stay, and the turn goes back to the head of the queue for the next claim. An agent that was only late goes
# on with its turn by its next call, unless somebody has claimed it meanwhile.

_GRACE = 30.0
"""Seconds for which a turn is held that was taken back, until the call that did it has said for how long."""


def claim(session: Session, lease_seconds: float) -> Turn | None:
    """Hand the next waiting turn to the caller; None while there is nothing to do.

    Raises `Conflict` when the session's driver is not `agent`.
    """
    if session.settings.driver != "agent":
        raise Conflict(f"session {session.id!r} is answered by the model; set driver=agent first")
    if session.running is not None or not session.queue:
        return None
    turn = session.queue.popleft()
    _lease(session, turn, lease_seconds, Lease.new_secret())
    session.begin(turn)
    return claim(session, lease_seconds) if turn.result.done() else turn


def update(
    session: Session, turn_id: str, secret: str, *, text: str, messages: Iterable[Message], lease_seconds: float
) -> Turn:
    """Add streamed text, or whole messages (tool calls and results), and renew the lease.

    Raises `StorageFull`.
    """
    turn = held(session, turn_id, secret)
    added = tuple(messages)
    session.require_room(len(added))
    session.account.require_room(size=sum(map(cost_of, added)))
    if text:
        session.add(turn, Delta(text, 0))
    session.add_messages(added, turn)
    session.note_tools()
    _lease(session, turn, lease_seconds, secret)
    return turn


def finish(session: Session, turn_id: str, secret: str, *, reply: str | None, error: str | None, usage: Usage) -> None:
    """End the turn by a reply (or else the text that was streamed) or by an error.

    Raises `StorageFull`: a reply that finds no room can still be ended by an error.
    """
    turn = held(session, turn_id, secret)
    if error is not None:
        session.fail_turn(turn, error, usage)
        return
    text = turn.text if reply is None else reply
    session.account.require_room(size=MESSAGE_COST + sys.getsizeof(text))
    session.finish_turn(turn, "stop", text, usage)


def held(session: Session, turn_id: str, secret: str) -> Turn:
    """Return the running turn if the caller holds it, or held it too long; raises `NotFound` or `Forbidden`."""
    _take_back(session, turn_id, secret)
    turn = session.running
    if turn is None or turn.id != turn_id:
        raise NotFound("this turn is not running: it has ended, was cancelled, or its lease ran out")
    if turn.lease is None or not _same(turn.lease.secret, secret):
        raise Forbidden("another agent holds this turn")
    return turn


def _take_back(session: Session, turn_id: str, secret: str) -> None:
    """Let the turn run again that waits only as its holder was late."""
    if session.running is not None or not session.queue or session.settings.driver != "agent":
        return
    turn = session.queue[0]
    if turn.id == turn_id and turn.lapsed is not None and _same(turn.lapsed, secret):
        session.queue.popleft()
        _lease(session, turn, _GRACE, secret)
        session.begin(turn)


def _same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(), other.encode())


def _lease(session: Session, turn: Turn, seconds: float, secret: str) -> None:
    if turn.lease is not None:
        turn.lease.timer.cancel()
    timer = asyncio.get_running_loop().call_later(seconds, expire, session, turn)
    turn.lease = Lease(secret, time.time() + seconds, timer)


def expire(session: Session, turn: Turn) -> None:
    """Put a turn whose lease has run out back to the head of the queue."""
    if session.running is not turn:
        return
    turn.lapsed, turn.lease = (turn.lease.secret if turn.lease is not None else None), None
    turn.said.clear()
    session.running = None
    session.queue.appendleft(turn)
    session.advance()
    session.publish_state(turn=turn.id)
