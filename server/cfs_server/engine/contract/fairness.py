"""Fair shares: virtual time at three levels, as in weighted fair queueing.

Owners share the engine equally, the kinds of work of one owner by weight, and the accounts of one kind equally. Within
one account the oldest turn is first. A session and its sub-sessions are one account, so children use their parent's
share. An account that was idle resumes with the lowest virtual time of its active siblings, so idle time earns no
credit.
"""

import heapq
from collections import Counter, defaultdict

Path = tuple[str, str, str]
"""Owner, kind of work, account."""
WEIGHTS = {"interactive": 8.0, "agent": 4.0, "background": 1.0}
"""Shares of an owner's time while all kinds have work; no kind starves."""


class Fairness:
    """Counts the engine time of each owner, kind and account, in seconds divided by its weight."""

    def __init__(self) -> None:
        self._had: dict[tuple[str | int, ...], float] = {}
        self._active: Counter[tuple[str, ...]] = Counter()
        self._siblings: defaultdict[tuple[str, ...], list[tuple[float, tuple[str, ...]]]] = defaultdict(list)
        """A heap below each level, with times that are at most the real ones: these are set when they come first."""
        self._listed: set[tuple[str, ...]] = set()

    def join(self, path: Path) -> None:
        """Count a new turn, waiting or running."""
        for level in _levels(path):
            if not self._active[level]:
                self._had[level] = max(self._had.get(level, 0.0), self._least_beside(level))
                self._list(level)
            self._active[level] += 1

    def leave(self, path: Path) -> None:
        """Uncount a turn; times are forgotten when there are no turns."""
        for level in _levels(path):
            self._active[level] -= 1
            if not self._active[level]:
                del self._active[level]
        if not self._active:
            self._had.clear()
            self._siblings.clear()
            self._listed.clear()

    def charge(self, path: Path, seconds: float) -> None:
        """Add time that was spent on a turn."""
        for level in _levels(path):
            self._had[level] = self._had.get(level, 0.0) + seconds / (WEIGHTS[path[1]] if len(level) == 2 else 1.0)

    def rank(self, path: Path) -> tuple[float, ...]:
        """Return the sort key of a turn: the lowest is first."""
        return tuple(map(self.had, _levels(path)))

    def had(self, level: tuple[str | int, ...]) -> float:
        """Return the time that a level has had: the beginning of a path. It grows while a turn is active there."""
        return self._had.get(level, 0.0)

    def check_integrity(self, paths: list[Path]) -> list[str]:
        """Compare with the unfinished turns; every line is a violation."""
        expected = Counter(level for path in paths for level in _levels(path))
        problems = [] if expected == self._active else ["the accounts and the unfinished turns do not agree"]
        heaps = [entry for heap in self._siblings.values() for entry in heap]
        if sorted(level for _, level in heaps) != sorted(self._listed) or not self._listed >= set(self._active):
            problems.append("the heaps and the accounts do not agree")
        if any(time > self._had[level] for time, level in heaps if level in self._active):
            problems.append("a heap has a time that is still to come")
        return problems

    def _list(self, level: tuple[str, ...]) -> None:
        if level not in self._listed:
            self._listed.add(level)
            heapq.heappush(self._siblings[level[:-1]], (self._had[level], level))

    def _least_beside(self, level: tuple[str, ...]) -> float:
        heap = self._siblings[level[:-1]]
        while heap:
            time, first = heap[0]
            if first not in self._active:
                heapq.heappop(heap)
                self._listed.remove(first)
            elif time < self._had[first]:
                heapq.heapreplace(heap, (self._had[first], first))
            else:
                return time
        return 0.0


def _levels(path: Path) -> tuple[tuple[str, ...], ...]:
    return path[:1], path[:2], path
