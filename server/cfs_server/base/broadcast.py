"""Wakes all waiters of a change, without polling (S7)."""

import asyncio


class Broadcast:
    """Wakes all waiters each time it fires; waiting costs one future (S7)."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] | None = None  # most broadcasts have none

    async def wait(self) -> None:
        """Return at the next `fire`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = set()
        self._waiters.add(future)
        try:
            await future
        finally:
            if self._waiters is not None:
                self._waiters.discard(future)

    def fire(self) -> None:
        """Wake all current waiters."""
        waiters, self._waiters = self._waiters, None
        for future in waiters or ():
            if not future.done():
                future.set_result(None)

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiters or ())
