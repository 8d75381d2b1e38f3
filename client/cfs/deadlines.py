"""How much time is left, and how long to pause before looking again."""

import math
import time

from cfs.errors import Timeout


class Deadline:
    """A point in time that something must not pass; `None` seconds never end."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; 0 afterwards."""
        return max(0.0, self._end - time.monotonic())

    def check(self, what: str) -> None:
        """Raise `Timeout`, with what was too late, when it has passed."""
        if not self.left:
            raise Timeout(f"after {self.seconds:g} seconds {what}")


class Pauses:
    """Times between two looks at what nobody announces: a millisecond at first, and no more than 20."""

    def __init__(self) -> None:
        self._next = 0.001

    def next(self) -> float:
        """Seconds to wait now."""
        now, self._next = self._next, min(self._next * 1.5, 0.02)
        return now
