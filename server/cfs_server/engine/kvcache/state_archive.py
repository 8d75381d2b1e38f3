"""Writes, reads and removes state files in order, in a thread beside the engine's thread.

I/O and checksums release the interpreter lock every mebibyte, so no step waits for them.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cfs_server.engine.kvcache.state_file import BadFile, Head, Piece, describe
from cfs_server.engine.kvcache.state_folder import Folder, Found

MOST_PENDING = 256 << 20
"""Bytes that may wait to be written: they are in memory until then, beyond the limit of that."""


@dataclass(frozen=True, slots=True)
class Write:
    """State to be written, and whose it is."""

    name: str
    owner: str
    sessions: tuple[str, ...]
    start: int
    tokens: NDArray[np.int32]
    pieces: Sequence[Piece]
    size: int


@dataclass(frozen=True, slots=True)
class Done:
    """The result for a file: it was written (no `head`), read, or there is a `problem`."""

    name: str
    head: Head | None = None
    pieces: tuple[Piece, ...] = ()
    problem: str = ""


_Task = Write | tuple[str, str] | None
"""A file to write; "read" or "remove" and a name; or the end."""


class Archive:
    """Takes tasks from the engine's thread; `wake` is called from this one when a result is there."""

    def __init__(self, folder: Folder, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self._folder = folder
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._pending = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="state files", daemon=True)
        self.found: list[Found]
        self.found, self.refused = folder.sweep()
        self._thread.start()

    def write(self, order: Write) -> bool:
        """Write a file in time; false when too much waits already."""
        with self._lock:
            if self._pending and self._pending + order.size > MOST_PENDING:
                return False
            self._pending += order.size
        self._tasks.put(order)
        return True

    def read(self, name: str) -> None:
        """Read a file in time."""
        self._tasks.put(("read", name))

    def remove(self, name: str) -> None:
        """Remove a file in time."""
        self._tasks.put(("remove", name))

    def results(self) -> list[Done]:
        """Return the results since the last call; removals have none."""
        results = []
        while not self._done.empty():
            results.append(self._done.get())
        return results

    def close(self) -> None:
        """Finish all tasks and release the folder for another worker."""
        self._tasks.put(None)
        self._thread.join()
        self._folder.close()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            match task:
                case Write():
                    self._tell(self._write(task))
                case ("read", name):
                    self._tell(self._read(name))
                case (_, name):
                    self._remove(name)

    def _tell(self, done: Done) -> None:
        self._done.put(done)
        self.wake()

    def _write(self, order: Write) -> Done:
        try:
            head = Head(
                self._folder.fingerprint,
                order.owner,
                order.sessions,
                order.start,
                len(order.tokens),
                order.tokens,
                describe(order.pieces),
            )
            self._folder.write(head, order.pieces, order.name)
        except OSError as error:
            return Done(order.name, problem=f"cannot be written: {(error.strerror or str(error)).lower()}")
        finally:
            with self._lock:
                self._pending -= order.size
        return Done(order.name)

    def _read(self, name: str) -> Done:
        try:
            head, pieces = self._folder.read(name)
        except (OSError, BadFile) as error:
            return Done(name, problem=f"cannot be read: {error}")
        return Done(name, head, pieces)

    def _remove(self, name: str) -> None:
        try:
            self._folder.remove(name)
        except OSError:
            return  # it is found, and refused or used, when the next worker starts
