"""Fair shares: virtual time at three levels, as in weighted fair queueing.

Owners share the engine equally, the kinds of work of one owner by weight, and the accounts of one kind equally. Within
one account the oldest turn is first. A session and its sub-sessions are one account, so children use their parent's
share. An account that was idle resumes with the lowest virtual time of its active siblings, so idle time earns no
credit.
"""

from collections import Counter

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
        expected = Counter(level for path in paths for level in _levels(path))
        return [] if expected == self._active else ["the accounts and the unfinished turns do not agree"]

    def _least_beside(self, level: tuple[str, ...]) -> float:
        beside = (self._had[other] for other in self._active if len(other) == len(level) and other[:-1] == level[:-1])
        return min(beside, default=0.0)


def _levels(path: Path) -> tuple[tuple[str, ...], ...]:
    return path[:1], path[:2], path
