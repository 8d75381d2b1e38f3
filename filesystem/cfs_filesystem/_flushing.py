"""Flushes folders to the disk, if need be beside other work of the same caller."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

_THREADS = 32
"""So many callers do not wait for each other; the disk flushes for them together."""


class FolderFlushes:
    """Flushes folders at once, or, in a block `beside`, in other threads while the block goes on."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._caller = threading.local()

    def flush(self, directory: int) -> None:
        """Flush a folder. Raises `OSError`, in a block `beside` at its end."""
        waiting: list[Future[None]] | None = getattr(self._caller, "waiting", None)
        if waiting is None:
            os.fsync(directory)
        else:
            waiting.append(self._threads().submit(_flushed, os.dup(directory)))

    @contextmanager
    def beside(self) -> Iterator[None]:
        """End this block of one thread when the folders are flushed. It cannot be nested."""
        waiting: list[Future[None]] = []
        self._caller.waiting = waiting
        try:
            yield
        finally:
            self._caller.waiting = None
            for future in waiting:
                future.exception()
        for future in waiting:
            future.result()

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown()

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "flush")
            return self._pool


def _flushed(directory: int) -> None:
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
