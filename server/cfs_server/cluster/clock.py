"""The time that replicas share: that of the database. Clocks of machines may differ by any amount.

What one replica writes with its time and another one compares with its own (leases of turns, shares, locks, how long a
session is kept, signatures of requests) would end too early or too late by the difference of their clocks.
"""

import time
from collections.abc import Callable

from cfs_server.base.clock import SteadyClock

_GOOD_SECONDS = 0.1
"""A measurement is at most half of its round trip wrong. One that took longer counts only if there is no other."""
_FRESH_SECONDS = 30.0
"""Clocks drift, and machines sleep: after this time any measurement is better than the last good one."""


class DatabaseClock:
    """Shows the time of a database, by the time that has passed here since it was last asked.

    It never goes back, although one measurement says a bit less than another: a reply is later than its message.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = 0.0
        self._steady: SteadyClock | None = None
        self._learned_at = -_FRESH_SECONDS

    def learn(self, database_time: float, asked_at: float, answered_at: float) -> None:
        """Take the time that a database has given between two monotonic times of this process."""
        good = answered_at - asked_at <= _GOOD_SECONDS
        if good or self._steady is None or answered_at - self._learned_at > _FRESH_SECONDS:
            self._offset = database_time - (asked_at + answered_at) / 2
        if self._steady is None:
            self._steady = SteadyClock(self._measured, self._monotonic)
        if good:
            self._learned_at = answered_at

    def __call__(self) -> float:
        """Return the time in seconds since 1970. The database must have been asked."""
        assert self._steady is not None  # noqa: S101 - a replica asks before it does anything else
        return self._steady()

    def _measured(self) -> float:
        return self._monotonic() + self._offset
