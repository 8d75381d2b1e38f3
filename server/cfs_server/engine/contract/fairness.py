"""Fair shares: virtual time at three levels, as in weighted fair queueing.

Owners share the engine equally, the kinds of work of one owner by weight, and the accounts of one kind equally. Within
one account the oldest turn is first. A session and its sub-sessions are one account, so children use their parent's
share. An account that was idle resumes with the lowest virtual time of its active siblings, so idle time earns no
credit.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

Path = tuple[str, str, str]
"""Owner, kind of work, account."""
WEIGHTS = {"interactive": 8.0, "agent": 4.0, "background": 1.0}
"""Shares of an owner's time while all kinds have work; no kind starves."""


class Fairness:
    """Counts the engine time of each owner, kind and account, in seconds divided by its weight."""

    def __init__(self) -> None:
        self._had: dict[tuple[str, ...], float] = {}
        self._active: Counter[tuple[str, ...]] = Counter()

    def join(self, path: Path) -> None:
        """Count a new turn, waiting or running."""
        for level in _levels(path):
            if not self._active[level]:
                self._had[level] = max(self._had.get(level, 0.0), self._least_beside(level))
            self._active[level] += 1

    def leave(self, path: Path) -> None:
        """Uncount a turn; times are forgotten when there are no turns."""
        for level in _levels(path):
            self._active[level] -= 1
            if not self._active[level]:
                del self._active[level]
        if not self._active:
            self._had.clear()

    def charge(self, path: Path, seconds: float) -> None:
        """Add time that was spent on a turn."""
        for level in _levels(path):
            self._had[level] = self._had.get(level, 0.0) + seconds / (WEIGHTS[path[1]] if len(level) == 2 else 1.0)

    def rank(self, path: Path) -> tuple[float, ...]:
        """Return the sort key of a turn: the lowest is first."""
        return tuple(self._had.get(level, 0.0) for level in _levels(path))

    def check_integrity(self, paths: list[Path]) -> list[str]:
        """Compare with the unfinished turns; every line is a violation."""
        wanted = Counter(level for path in paths for level in _levels(path))
        return [] if wanted == self._active else ["the accounts and the unfinished turns do not agree"]

    def _least_beside(self, level: tuple[str, ...]) -> float:
        beside = (self._had[other] for other in self._active if len(other) == len(level) and other[:-1] == level[:-1])
        return min(beside, default=0.0)


def _levels(path: Path) -> tuple[tuple[str, ...], ...]:
    return path[:1], path[:2], path


# -- the backlog: the turns that wait for an engine, and the expected wait of a new turn ------------------------------
#
# The expected wait depends on the owner. With fair shares a new turn passes the many turns of another owner. It starts
# after its owner's waiting turns, when each other owner has had an equal share of the engine and one more turn. The
# same holds among the owner's kinds of work, by weight. All turns of the same kind and owner count as ahead of it, in
# any account.

MOST_OWNERS = 64
"""Owners that are listed, those with most work; the work of all others counts as ahead of every turn."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Seconds of the engine's time: until a turn can start, of a usual turn, and of the waiting work by owner and kind.

    `rest` is the waiting work of owners that are not listed. The default is an engine where a turn can start at once.
    """

    place: float = 0.0
    turn: float = 0.0
    waiting: dict[str, dict[str, float]] = field(default_factory=dict)
    rest: float = 0.0

    @classmethod
    def of(cls, place: float, turns: Iterable[tuple[str, str, float]]) -> "Backlog":
        """Sum up turns that wait: owner, kind, seconds."""
        waiting: dict[str, dict[str, float]] = {}
        count, total = 0, 0.0
        for owner, kind, seconds in turns:
            kinds = waiting.setdefault(owner, {})
            kinds[kind] = kinds.get(kind, 0.0) + seconds
            count, total = count + 1, total + seconds
        busiest = dict(heapq.nlargest(MOST_OWNERS, waiting.items(), key=lambda entry: sum(entry[1].values())))
        listed = sum(sum(kinds.values()) for kinds in busiest.values())
        rest = total - listed if len(busiest) < len(waiting) else 0.0
        return cls(place, total / count if count else 0.0, busiest, rest)

    def wait(self, owner: str, kind: str) -> float:
        """Predict the wait of a new turn: for the next start, and for all that fair shares put before it."""
        kinds = self.waiting.get(owner, {})
        same = kinds.get(kind, 0.0)
        rival = ((WEIGHTS[other] / WEIGHTS[kind], seconds) for other, seconds in kinds.items() if other != kind)
        own = same + sum(min(seconds, (same + self.turn) * weight) for weight, seconds in rival)
        others = (sum(kinds.values()) for other, kinds in self.waiting.items() if other != owner)
        return self.place + own + sum(min(seconds, own + self.turn) for seconds in others) + self.rest
