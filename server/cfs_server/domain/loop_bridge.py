"""Runs calls from threads on the event loop, and long work of the loop in threads."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from cfs.errors import Unavailable

_T = TypeVar("_T")
_LOOK_SECONDS = 1.0

AT_ONCE_BYTES = 64 << 10
"""Maximum number of bytes that are processed on the loop itself. A thread processes more."""
_THREADS = CapacityLimiter(2)
"""More threads would not make Python faster, but would make the loop wait longer."""
_lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


async def aside(size: int, owner: str, work: Callable[[], _T]) -> _T:
    """Run work on this many bytes: directly if they are few, else in a thread.

    The work of one owner runs sequentially, so that it does not delay other owners.
    """
    if size <= AT_ONCE_BYTES:
        return work()
    line = _lines.setdefault(owner, asyncio.Lock())
    async with line:
        return await to_thread.run_sync(work, limiter=_THREADS)


class LoopBridge:
    """Runs calls on the event loop on which it was created."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self, action: Callable[[], _T]) -> _T:
        """Run an action on the loop: directly on the loop's thread, else scheduled.

        Raises `Unavailable` when the loop has ended. A closing loop drops scheduled calls silently, so a long call
        checks whether the loop still runs.
        """
        if threading.get_ident() == self._thread:
            return action()
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except BaseException as error:  # noqa: BLE001 - passed on to the caller
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:
            raise Unavailable("the server has ended") from None
        return self._result(done)

    @contextmanager
    def within(self, block: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
        """Enter an asynchronous block on the loop, and leave it at the end of this one."""
        entered = self._await(block.__aenter__())
        try:
            yield entered
        finally:
            self._await(block.__aexit__(None, None, None))

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop, to its end. On the loop's own thread it must not wait."""
        return self._await(work)

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        if threading.get_ident() == self._thread:
            return _at_once(work)
        try:
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unavailable("the server has ended") from None
        return self._result(done)

    def _result(self, done: Future[_T]) -> _T:
        while not wait([done], _LOOK_SECONDS).done:
            if self._loop.is_closed() and not done.done():
                raise Unavailable("the server has ended")
        return done.result()


def _at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that does not wait. Raises `RuntimeError` if it does."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    work.close()
    raise RuntimeError("on the loop itself this call cannot wait")
