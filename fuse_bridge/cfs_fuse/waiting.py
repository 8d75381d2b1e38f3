"""Waiting in a handler of the kernel's requests: it can be interrupted, and leaves threads for the others (F3).

The kernel tells the bridge of a signal to the caller, but a handler has to look: without that not even SIGKILL gets a
blocked reader away. So no wait here is longer than `POLL` seconds at a time.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")

POLL = 0.1
CALLS = 64
"""Calls of the server that are on their way at a time."""


class Kernel(Protocol):
    """What a handler asks about the request that it serves."""

    def interrupted(self) -> bool:
        """Whether the caller got a signal."""
        ...

    def unmounting(self) -> bool:
        """Whether the mount is being taken down."""
        ...


class Patience:
    """Waits for things on behalf of callers; at most `places` of them wait for sessions at a time."""

    def __init__(self, kernel: Kernel, places: int) -> None:
        self._kernel = kernel
        self._places = threading.BoundedSemaphore(places)
        self._calls = ThreadPoolExecutor(CALLS, thread_name_prefix="call")

    def until(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        """Wait until something is true, however long that takes; the condition's lock is held.

        Raises `OSError`: EINTR when the caller got a signal, EAGAIN when too many wait, EIO when the mount ends.
        """
        if ready():
            return
        with self._place():
            while not ready():
                condition.wait(POLL)
                self._look()

    def at_most(self, condition: threading.Condition, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait some seconds at most; the condition's lock is held. Returns whether it came true; raises as `until`."""
        end = time.monotonic() + seconds
        with self._place():
            while not ready():
                if (left := end - time.monotonic()) <= 0:
                    return False
                condition.wait(min(left, POLL))
                self._look()
        return True

    def briefly(self, condition: threading.Condition, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait for what is on its way already, as `at_most` does, but raise nothing and take nobody's place."""
        end = time.monotonic() + seconds
        while not ready():
            left = end - time.monotonic()
            if left <= 0 or self._kernel.interrupted() or self._kernel.unmounting():
                return False
            condition.wait(min(left, POLL))
        return True

    def call(self, work: Callable[[], T]) -> T:
        """Do something elsewhere and wait for its result; raises what it raised, or as `until` does."""
        future = self._calls.submit(work)
        while True:
            try:
                return future.result(POLL)
            except TimeoutError:
                if future.done():
                    raise  # its own
            try:
                self._look()
            except OSError:
                future.cancel()
                raise

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise OSError(errno.EAGAIN, "too many readers wait in this mount")
        try:
            yield
        finally:
            self._places.release()

    def _look(self) -> None:
        if self._kernel.interrupted():
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        if self._kernel.unmounting():
            raise OSError(errno.EIO, "the mount is being taken down")
