"""Whose turn is next: virtual time at three levels, as in weighted fair queueing.

An owner competes with owners, its kinds of work with each other by weight, its accounts with each other; among turns of
one account the oldest is first. A family of sessions is one account, so children draw on their parent's share. Whoever
was idle comes back with the least that anybody beside him has had: idleness saves nothing up.
"""

from collections import Counter

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
