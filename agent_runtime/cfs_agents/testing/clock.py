"""A clock that a test turns."""

import asyncio
import heapq
from itertools import count


class ManualClock:
    """Time that passes only when a test says so, or, with `jumps`, at once whenever somebody sleeps."""

    def __init__(self, now: float = 0.0, *, jumps: bool = False) -> None:
        self.slept: list[float] = []
        self._now = now
        self._jumps = jumps
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._changed = asyncio.Event()

    def time(self) -> float:
        """Say what time it is, in seconds."""
        return self._now

    @property
    def sleepers(self) -> int:
        """How many sleep."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has gone so far; `slept` remembers how long everybody slept, in their order."""
        self.slept.append(seconds)
        if self._jumps or seconds <= 0:
            self._now += max(seconds, 0) if self._jumps else 0
            await asyncio.sleep(0)
            return
        due, woken = self._now + seconds, asyncio.Event()
        sleeper = (due, next(self._order), woken)
        heapq.heappush(self._sleepers, sleeper)
        self._changed.set()
        try:
            await woken.wait()
        finally:
            if sleeper in self._sleepers:  # cancelled
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    def advance(self, seconds: float) -> None:
        """Let time pass; who slept until then goes on, in the order of their times."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            heapq.heappop(self._sleepers)[2].set()

    async def until_asleep(self, sleepers: int = 1) -> None:
        """Wait until so many sleep."""
        while len(self._sleepers) < sleepers:
            self._changed.clear()
            await self._changed.wait()
