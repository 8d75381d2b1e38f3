"""Deadlines and polling intervals."""

import math
import time

from cfs.contract.errors import Timeout


class Deadline:
    """A point in time; `None` seconds mean no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Remaining seconds; 0 after the deadline."""
        return max(0.0, self._end - time.monotonic())

    def check(self, what: str) -> None:
        """Raise `Timeout`, naming what was late, if the deadline has passed."""
        if not self.left:
            raise Timeout(f"after {self.seconds:g} seconds {what}")


class Pauses:
    """Polling intervals: 1 ms at first, up to 20 ms."""

    def __init__(self) -> None:
        self._next = 0.001

    def next(self) -> float:
        """Return the seconds to wait before the next poll."""
        now, self._next = self._next, min(self._next * 1.5, 0.02)
        return now
