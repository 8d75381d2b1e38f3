"""The standard error of a program: its last words are kept, the rest is dropped."""

import asyncio
import os
from typing import TextIO

_MAX_BYTES = 4096


class StderrTail:
    """A pipe for a program's standard error. Use it in the thread of the event loop, and `close` it."""

    def __init__(self) -> None:
        self._tail = b""
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)  # the program's end
        self.writer: TextIO = os.fdopen(writer, "w")
        """What the program inherits; close it here once the program runs."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    @property
    def text(self) -> str:
        """The end of what the program has written."""
        return self._tail.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Take what is there, and close both ends."""
        if not self.writer.closed:
            self.writer.close()
        if self._reader >= 0:
            self._read()
        self._stop()

    def _read(self) -> None:
        while self._reader >= 0:
            try:
                data = os.read(self._reader, 65536)
            except BlockingIOError:
                return
            if not data:
                self._stop()
                return
            self._tail = (self._tail + data)[-_MAX_BYTES:]

    def _stop(self) -> None:
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1
