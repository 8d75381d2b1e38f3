"""Whose turn is next: virtual time at three levels, as in weighted fair queueing.

An owner competes with owners, its kinds of work with each other by weight, its accounts with each other; among turns of
one account the oldest is first. A family of sessions is one account, so children draw on their parent's share. Whoever
was idle comes back with the least that anybody beside him has had: idleness saves nothing up.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

Path = tuple[str, str, str]
"""Owner, kind of work, account."""
WEIGHTS = {"interactive": 8.0, "agent": 4.0, "background": 1.0}
"""Shares of an owner's time while all kinds have work; none is ever left without."""


class Fairness:
    """Counts how much of the engine's time each has had, in seconds divided by its weight."""

    def __init__(self) -> None:
        self._had: dict[tuple[str, ...], float] = {}
        self._active: Counter[tuple[str, ...]] = Counter()

    def join(self, path: Path) -> None:
        """Note that a turn has come, waiting or running."""
        for level in _levels(path):
            if not self._active[level]:
                self._had[level] = max(self._had.get(level, 0.0), self._least_beside(level))
            self._active[level] += 1

    def leave(self, path: Path) -> None:
        """Note that a turn is over; what nobody needs to know any more is forgotten."""
        for level in _levels(path):
            self._active[level] -= 1
            if not self._active[level]:
                del self._active[level]
        if not self._active:
            self._had.clear()

    def charge(self, path: Path, seconds: float) -> None:
        """Count time that was spent on a turn."""
        for level in _levels(path):
            self._had[level] = self._had.get(level, 0.0) + seconds / (WEIGHTS[path[1]] if len(level) == 2 else 1.0)

    def rank(self, path: Path) -> tuple[float, ...]:
        """Order turns: the least goes first."""
        return tuple(self._had.get(level, 0.0) for level in _levels(path))

    def check_integrity(self, paths: list[Path]) -> list[str]:
        """Compare with the turns that there are; every line is a violation."""
        wanted = Counter(level for path in paths for level in _levels(path))
        return [] if wanted == self._active else ["the accounts and the unfinished turns do not agree"]

    def _least_beside(self, level: tuple[str, ...]) -> float:
        beside = (self._had[other] for other in self._active if len(other) == len(level) and other[:-1] == level[:-1])
        return min(beside, default=0.0)


def _levels(path: Path) -> tuple[tuple[str, ...], ...]:
    return path[:1], path[:2], path


# What waits for an engine, and how long a turn that came now would wait behind it: not the same for everybody.
#
# Fair shares let a newcomer pass a crowd. His turn comes when all that he has waiting already is served, and each other
# owner has had as much of the engine and a turn. The same holds among his own kinds of work, by their weights. Turns of
# one kind count as ahead of him, whichever of his accounts they are of.

MOST_OWNERS = 64
"""So many are told apart, those with most work; what the others have waiting goes before everybody."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Seconds of the engine's time: until a place is free, for a usual turn, and by owner and kind what waits.

    `rest` is what waits of owners that are not listed. The default is an engine that has a place.
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
        """Predict for a turn that came now: the next place, and whatever fair shares put before it."""
        kinds = self.waiting.get(owner, {})
        same = kinds.get(kind, 0.0)
        rival = ((WEIGHTS[other] / WEIGHTS[kind], seconds) for other, seconds in kinds.items() if other != kind)
        own = same + sum(min(seconds, (same + self.turn) * weight) for weight, seconds in rival)
        others = (sum(kinds.values()) for other, kinds in self.waiting.items() if other != owner)
        return self.place + own + sum(min(seconds, own + self.turn) for seconds in others) + self.rest
