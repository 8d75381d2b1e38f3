"""What a session does until its next turn, told to the engine, which keeps near what is needed soon (E3).

The hint follows from the session's state and from what was said last; `Hints` looks at a session where its state
changes, and says nothing twice in a row.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from cfs_server.engine.interface import Engine, Hint
from cfs_server.sessions.ids import ancestors_of
from cfs_server.sessions.session import Session
from cfs_server.sessions.turns import TurnState


@dataclass(frozen=True, slots=True)
class Situation:
    """What of a session's state matters."""

    answering: bool = False
    """The model computes its reply."""
    at_work: bool = False
    """A turn runs, or waits."""
    calls_tool: bool = False
    """The agent that answers waits for a tool's result."""
    children_at_work: bool = False


def hint_for(now: Situation, last: Hint | None) -> Hint | None:
    """Say what the session's computation waits for; None while it is in use, or will be in a moment."""
    if now.answering:
        return None
    if now.children_at_work:
        return "waiting_for_children"
    if now.calls_tool:
        return "tool_call"
    if now.at_work:
        return None
    return "children_done" if last in ("waiting_for_children", "children_done") else "user_turn"


class Hints:
    """Remembers who is at work below whom, and what was said of each session; a look costs the depth of the family."""

    def __init__(self, engine: Engine, find: Callable[[str], Session | None]) -> None:
        self._engine = engine
        self._find = find
        self._busy: set[str] = set()
        self._busy_below: Counter[str] = Counter()
        self._last: dict[str, Hint] = {}

    def look(self, session: Session) -> None:
        """Note that a session's state may have changed."""
        self._mark(session.id, busy=not session.idle)
        self._tell(session)

    def taken_away(self, session_id: str) -> None:
        """Note that there is no session of this id any more: it was renamed or deleted."""
        self._mark(session_id, busy=False)

    def forget(self, key: str) -> None:
        """Forget what was said of a session."""
        self._last.pop(key, None)

    def check_integrity(self, busy: set[str], keys: set[str]) -> None:
        """Raise `AssertionError` unless the books agree with the sessions that there are."""
        below = Counter(above for session_id in busy for above in ancestors_of(session_id))
        if (self._busy, +self._busy_below) != (busy, below) or self._last.keys() - keys:
            raise AssertionError("what is known of busy sessions is not true")

    def _mark(self, session_id: str, *, busy: bool) -> None:
        if busy == (session_id in self._busy):
            return
        (self._busy.add if busy else self._busy.remove)(session_id)
        for above in ancestors_of(session_id):
            self._busy_below[above] += 1 if busy else -1
            if not self._busy_below[above]:
                del self._busy_below[above]
            if (ancestor := self._find(above)) is not None:
                self._tell(ancestor)

    def _tell(self, session: Session) -> None:
        last = self._last.get(session.key)
        hint = hint_for(_situation(session, children_at_work=session.id in self._busy_below), last)
        if hint is None:
            self._last.pop(session.key, None)
        elif hint != last:
            self._last[session.key] = hint
            self._engine.hint(session.key, hint)


def _situation(session: Session, *, children_at_work: bool) -> Situation:
    turn, newest = session.running, session.history.last
    leased = turn is not None and turn.state is TurnState.LEASED
    return Situation(
        answering=turn is not None and not leased,
        at_work=not session.idle,
        calls_tool=leased and newest is not None and bool(newest.tool_calls),
        children_at_work=children_at_work,
    )
