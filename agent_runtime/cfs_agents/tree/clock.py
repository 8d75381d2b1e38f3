"""Measures the time that a task takes, without outages."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WorkClock:
    """Measures the time that a task takes, in seconds; `away` returns for how long there has been no server in all.

    Outages and the time in `suspended` do not count.
    """

    def __init__(self, away: Callable[[], float]) -> None:
        self.started = False
        self._away = away
        self._used = 0.0
        self._since: float | None = None
        self._away_before = 0.0

    @property
    def seconds(self) -> float:
        """The time that the task has taken so far."""
        if self._since is None:
            return self._used
        return self._used + max(0.0, time.monotonic() - self._since - (self._away() - self._away_before))

    def start(self, used: float) -> None:
        """Start, where the task has taken so many seconds before."""
        self.started, self._used = True, used
        self._go()

    def reset(self) -> None:
        """Reset the usage at the start of another task."""
        self._used = 0.0

    def stop(self) -> float:
        """Stop, and return the time that the task has taken."""
        self._used, self._since, self.started = self.seconds, None, False
        return self._used

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave out the time that the block takes."""
        self._used, self._since = self.seconds, None
        try:
            yield
        finally:
            if self.started:
                self._go()

    def _go(self) -> None:
        self._since, self._away_before = time.monotonic(), self._away()
