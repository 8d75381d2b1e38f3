"""The clock of the test's own process and its event loops, which a test sets forward instead of waiting."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Clock:
    """Replaces `time.monotonic`, which event loops use, too, but not for threads that were there before.

    The loop of a server that tests share would plan in the time that a test has set, and wait for it after the test.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._real = time.monotonic
        self._others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        self._ahead = 0.0
        self._stopped: float | None = None
        patch.setattr(time, "monotonic", self.now)

    def advance(self, seconds: float) -> None:
        """Set it forward."""
        self._ahead += seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still in the block, except for `advance`."""
        self._stopped = self._real()
        try:
            yield
        finally:
            self._stopped = None

    async def passes(self, seconds: float) -> None:
        """Set it forward, and let everything happen that happens at once."""
        self.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0)

    def now(self) -> float:
        """Return the time, in seconds."""
        if threading.get_ident() in self._others:
            return self._real()
        return (self._real() if self._stopped is None else self._stopped) + self._ahead
