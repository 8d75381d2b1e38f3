"""A limit of concurrent turns at an upstream; the others wait (E3)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cfs_server.engine.contract.backlog import Backlog
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
        self._waiting: list[tuple[Path, asyncio.Future[None]]] = []
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
        return Backlog.of(average, ((*path[:2], average) for path, _ in self._waiting))

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
        entry = (path, future)
        self._waiting.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._pass_on()  # it was given the place and cannot use it
            else:
                self._waiting.remove(entry)
            raise

    def _leave(self, path: Path, seconds: float) -> None:
        self._fairness.charge(path, seconds)
        self._seconds += (seconds - self._seconds) * (_WEIGHT if self._seconds else 1.0)
        self._pass_on()

    def _pass_on(self) -> None:
        waiting = [entry for entry in self._waiting if not entry[1].cancelled()]  # such a task has not run since
        if not waiting:
            self.held -= 1
            return
        entry = min(waiting, key=lambda entry: self._fairness.rank(entry[0]))
        self._waiting.remove(entry)
        entry[1].set_result(None)
