"""Sessions that an agent answers (S10): it claims a turn, works under a lease that it renews, and finishes the turn.

When the lease runs out the agent is taken for dead: the text it had streamed is dropped, the messages it had completed
stay, and the turn goes back to the head of the queue for the next claim. An agent that was only late goes on with its
turn by its next call, unless somebody has claimed it meanwhile.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import Iterable

from cfs.errors import Conflict, Forbidden, NotFound
from cfs.wire import Message, Usage
from cfs_server.engine.interface import Delta
from cfs_server.sessions.history import MESSAGE_COST, cost_of
from cfs_server.sessions.session import Session
from cfs_server.sessions.turns import Lease, Turn

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
