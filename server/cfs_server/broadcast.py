"""Wakes all waiters of a change, without polling (S7)."""

import asyncio


class Broadcast:
    """Wakes all waiters each time it fires; waiting costs one future (S7)."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Return at the next `fire`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        try:
            await future
        finally:
            self._waiters.discard(future)

    def fire(self) -> None:
        """Wake all current waiters."""
        waiters, self._waiters = self._waiters, set()
        for future in waiters:
            if not future.done():
                future.set_result(None)

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiters)
