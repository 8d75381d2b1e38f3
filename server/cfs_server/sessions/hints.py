"""Hints to the engine about a session's next turn, so that it caches what is needed soon (E3).

The hint depends on the session's state and on the last hint. `Hints` checks a session when its state changes, and never
sends the same hint twice in a row.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cfs_server.domain.ids import ancestors_of
from cfs_server.domain.turns import TurnState
from cfs_server.engine.contract.interface import Engine, Hint
from cfs_server.sessions.session import Session


@dataclass(frozen=True, slots=True)
class Workload:
    """The parts of a session's state that hints depend on."""

    answering: bool = False
    """The model generates its reply."""
    at_work: bool = False
    """A turn runs or waits."""
    calls_tool: bool = False
    """The agent that answers waits for the result of a tool."""
    children_at_work: bool = False


def hint_for(now: Workload, last: Hint | None) -> Hint | None:
    """Return what the session's cached computation waits for; None while it is in use or will be immediately."""
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
    """Tracks the busy sub-sessions and the last hint of each session. A check costs the depth of the family."""

    def __init__(self, engine: Engine, find: Callable[[str], Session | None]) -> None:
        self._engine = engine
        self._find = find
        self._busy: set[str] = set()
        self._busy_below: Counter[str] = Counter()
        self._last: dict[str, Hint] = {}

    @property
    def busy(self) -> Collection[str]:
        """The ids of the sessions in which a turn runs or waits."""
        return self._busy

    def is_busy_below(self, session_id: str) -> bool:
        """Return whether a turn runs or waits below a session. This does not look at the sub-sessions."""
        return session_id in self._busy_below

    def look(self, session: Session) -> None:
        """Update the hints after a possible change of a session's state."""
        self._mark(session.id, busy=not session.idle)
        self._tell(session)

    def taken_away(self, session_id: str) -> None:
        """Remove a session id after a rename or a delete."""
        self._mark(session_id, busy=False)

    def forget(self, key: str) -> None:
        """Remove the last hint of a session."""
        self._last.pop(key, None)

    def check_integrity(self, busy: set[str], keys: set[str]) -> None:
        """Raise `AssertionError` unless the tracked state agrees with the sessions."""
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
        hint = hint_for(_workload(session, children_at_work=self.is_busy_below(session.id)), last)
        if hint is None:
            self._last.pop(session.key, None)
        elif hint != last:
            self._last[session.key] = hint
            self._engine.hint(session.key, hint)


def _workload(session: Session, *, children_at_work: bool) -> Workload:
    turn = session.running
    leased = turn is not None and turn.state is TurnState.LEASED
    return Workload(
        answering=turn is not None and not leased,
        at_work=not session.idle,
        calls_tool=leased and session.history.calls_tools,
        children_at_work=children_at_work,
    )
