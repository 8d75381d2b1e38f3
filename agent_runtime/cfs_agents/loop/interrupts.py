"""Interrupts work from outside, at the places where it waits."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


class Interrupted(Exception):
    """The work was asked to stop; raised where it waits."""


class Interrupts:
    """Cancels what is awaited through `guard` when `request` is called, and nothing else.

    The asyncio task itself may belong to a caller who continues after the work has ended. So the cancellation is taken
    back where the work ends, as `asyncio.timeout` does.
    """

    def __init__(self) -> None:
        self._requested = False
        self._task: asyncio.Task[object] | None = None

    def clear(self) -> None:
        """Drop a request from before the work began."""
        self._requested = False

    def request(self) -> None:
        """Stop the work. Call it from the thread of its event loop."""
        if not self._requested and self._task is not None:
            self._task.cancel()
        self._requested = True

    async def guard(self, work: Awaitable[_T]) -> _T:
        """Await something; raises `Interrupted` if the work is to stop."""
        if self._requested:
            if asyncio.iscoroutine(work):
                work.close()
            raise Interrupted
        task = self._task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        before = task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            if self._requested and task.uncancel() <= before:
                raise Interrupted from None
            raise
        finally:
            self._task = None
