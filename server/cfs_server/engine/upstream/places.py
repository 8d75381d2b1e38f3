"""A limit of concurrent turns at an upstream; the others wait (E3)."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from cfs_server.engine.contract.backlog import Backlog
from cfs_server.engine.contract.fair_queue import FairQueue
from cfs_server.engine.contract.fairness import Fairness, Path

_WEIGHT = 0.2
"""How much the newest turn counts in the average time of a turn."""


class Places:
    """Hands out places, fairly among owners, kinds of work and accounts; see `Fairness`."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.held = 0
        self._count = count
        self._clock = clock
        self._fairness = Fairness()
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(self._fairness)
        self._counts: Counter[tuple[str, str]] = Counter()
        """How many wait, by owner and kind."""
        self._seconds = 0.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def backlog(self) -> Backlog:
        """The waiting work, estimated from recent turns."""
        if self.held < self._count:
            return Backlog()
        average = self._seconds / self._count
        work = ((owner, kind, average * count) for (owner, kind), count in self._counts.items())
        return replace(Backlog.of(average, work), turn=average if self._waiting else 0.0)

    @asynccontextmanager
    async def place(self, path: Path) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        self._fairness.join(path)
        try:
            await self._take(path)
            started = self._clock()
            try:
                yield
            finally:
                self._leave(path, self._clock() - started)
        finally:
            self._fairness.leave(path)

    async def _take(self, path: Path) -> None:
        if self.held < self._count:
            self.held += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future, path)
        self._counts[path[:2]] += 1
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._pass_on()  # it was given the place and cannot use it
            elif future in self._waiting:
                self._stop_waiting(future)
            raise

    def _leave(self, path: Path, seconds: float) -> None:
        self._fairness.charge(path, seconds)
        self._seconds += (seconds - self._seconds) * (_WEIGHT if self._seconds else 1.0)
        self._pass_on()

    def _pass_on(self) -> None:
        while (future := self._waiting.first()) is not None:
            self._stop_waiting(future)
            if not future.cancelled():  # else its task has not run since
                future.set_result(None)
                return
        self.held -= 1

    def _stop_waiting(self, future: asyncio.Future[None]) -> None:
        owner, kind, _ = self._waiting.remove(future)
        self._counts[owner, kind] -= 1
        if not self._counts[owner, kind]:
            del self._counts[owner, kind]
