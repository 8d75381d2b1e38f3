"""The time of this process, which never goes back: what happens later has no earlier time."""

import threading
import time
from collections.abc import Callable


class SteadyClock:
    """A clock that shows the time of the machine. If that is set back, it goes on at half speed until both agree."""

    def __init__(
        self, machine: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._machine = machine
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._now, self._looked_at = machine(), monotonic()

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        with self._lock:
            looked_at = self._monotonic()
            elapsed, self._looked_at = looked_at - self._looked_at, looked_at
            self._now = max(self._machine(), self._now + elapsed / 2)
            return self._now


steady_time = SteadyClock()
"""The clock of all who write down times that are compared, such as those of messages and of changes of files."""
