"""Writes, reads and removes state files, in a thread beside the engine's thread.

Writes are done in order, no faster than a rate. Reads and removals come first, also in the middle of a write. I/O and
checksums release the interpreter lock every mebibyte, so no step waits for them.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cfs_server.engine.kvcache.state_file import BadFile, StateHeader, StatePiece, describe
from cfs_server.engine.kvcache.state_folder import Folder, SavedState

MOST_PENDING = 256 << 20
"""Bytes that may wait to be written: they are in memory until then, beyond the limit of that."""


@dataclass(frozen=True, slots=True)
class StateWrite:
    """State to be written, and whose it is."""

    name: str
    owner: str
    sessions: tuple[str, ...]
    start: int
    tokens: NDArray[np.int32]
    pieces: Sequence[StatePiece]
    size: int

    def head(self, fingerprint: str, pieces: Sequence[StatePiece]) -> StateHeader:
        """Make the head of a file with these pieces."""
        return StateHeader(
            fingerprint, self.owner, self.sessions, self.start, len(self.tokens), self.tokens, describe(pieces)
        )


@dataclass(frozen=True, slots=True)
class Done:
    """The result for a file: it was written (no `head`), read, or there is a `problem`."""

    name: str
    head: StateHeader | None = None
    pieces: tuple[StatePiece, ...] = ()
    problem: str = ""


class _Removed(Exception):
    """The file that is being written is not wanted any more."""


class StateArchive:
    """Takes tasks from the engine's thread; `wake` is called when a result is there.

    `rate` is the number of bytes that are written in a second at most; 0 is no limit.
    """

    def __init__(
        self,
        folder: Folder,
        wake: Callable[[], None] = lambda: None,
        rate: int = 0,
        most_pending: int = MOST_PENDING,
    ) -> None:
        self.wake = wake
        self._most_pending = most_pending
        self._folder = folder
        self._rate = rate
        self._paid = 0.0
        """When the bytes that were written so far are within the rate."""
        self._changed = threading.Condition()
        self._writes: OrderedDict[str, StateWrite] = OrderedDict()
        """Files to write; the first may be half done."""
        self._urgent: deque[tuple[Literal["read", "remove"], str]] = deque()
        self._busy = self._hurry = self._closing = False
        self._pending = 0
        self._done: deque[Done] = deque()
        self._thread = threading.Thread(target=self._work, name="state files", daemon=True)
        self.found: list[SavedState]
        self.found, self.refused = folder.sweep()
        self._thread.start()

    def write(self, order: StateWrite) -> bool:
        """Write a file in time; false when too much waits already."""
        with self._changed:
            if self._pending and self._pending + order.size > self._most_pending:
                return False
            self._pending += order.size
            self._writes[order.name] = order
            self._changed.notify_all()
        return True

    def read(self, name: str) -> None:
        """Read a file before all writes. The result of one that is not written yet is there at once."""
        with self._changed:
            order = self._writes.get(name)
            if order is None:
                self._urgent.append(("read", name))
                self._changed.notify_all()
        if order is not None:
            self._tell(Done(name, order.head(self._folder.fingerprint, ()), tuple(order.pieces)))

    def remove(self, name: str) -> None:
        """Remove a file before all writes. One that is not written yet never is."""
        with self._changed:
            self._drop(name)
            self._urgent.append(("remove", name))
            self._changed.notify_all()

    @property
    def pending(self) -> int:
        """Bytes that wait to be written."""
        return self._pending

    def results(self) -> list[Done]:
        """Return the results since the last call; removals have none."""
        results = []
        while self._done:
            results.append(self._done.popleft())
        return results

    def drain(self, seconds: float | None = None) -> bool:
        """Finish all tasks without regard to the rate; false if that takes longer. Called from any thread."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            finished = self._changed.wait_for(lambda: not (self._busy or self._writes or self._urgent), seconds)
            self._hurry = False
        return finished

    def close(self) -> None:
        """Finish all tasks and release the folder for another worker."""
        with self._changed:
            self._closing = self._hurry = True
            self._changed.notify_all()
        self._thread.join()
        self._folder.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._urgent or self._writes or self._closing)
                order = None if self._urgent else next(iter(self._writes.values()), None)
                if not (self._urgent or order):
                    return
                self._busy = True
            self._serve_urgent()
            if order is not None:
                self._tell(self._write(order))
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _serve_urgent(self) -> None:
        while self._urgent:
            task, name = self._urgent.popleft()
            if task == "read":
                self._tell(self._read(name))
            else:
                self._remove(name)

    def _tell(self, done: Done) -> None:
        self._done.append(done)
        self.wake()

    def _write(self, order: StateWrite) -> Done:
        problem = ""
        try:
            head = order.head(self._folder.fingerprint, order.pieces)
            self._folder.write(head, order.pieces, order.name, lambda size: self._pace(order.name, size))
        except _Removed:
            pass
        except OSError as error:
            problem = f"cannot be written: {(error.strerror or str(error)).lower()}"
        with self._changed:
            removed = order.name not in self._writes
            self._drop(order.name)
        if removed:
            self._remove(order.name)
        return Done(order.name, problem=problem)

    def _pace(self, name: str, size: int) -> None:
        """Wait until the rate allows more, and do what is urgent meanwhile. Raises `_Removed`."""
        if self._rate:
            self._paid = max(self._paid, time.monotonic()) + size / self._rate
        while True:
            self._serve_urgent()
            with self._changed:
                if name not in self._writes:
                    raise _Removed
                left = 0.0 if self._hurry else self._paid - time.monotonic()
                if left <= 0:
                    return
                if not self._urgent:
                    self._changed.wait(left)

    def _drop(self, name: str) -> None:
        """Take a file off the list of writes; the lock must be held."""
        order = self._writes.pop(name, None)
        if order is not None:
            self._pending -= order.size

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
