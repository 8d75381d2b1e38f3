"""One command in bash: reads its output, and recognises or forces its end (A5)."""

import secrets
import time
from collections.abc import Callable
from functools import partial

from cfs_agents.base.logs import get_logger
from cfs_agents.shell.census import boot_ticks
from cfs_agents.shell.orders import Mark, MarkReader
from cfs_agents.shell.output import PIPE_SIZE, OutputStream
from cfs_agents.shell.process import Bash
from cfs_agents.shell.steps import AwaitReadable, Steps, Work

_log = get_logger(__name__)

LAST_RESORT_SECONDS = 20.0
"""Time limit of operations that take milliseconds: the start of bash, and its end after SIGKILL."""

_STRAGGLE_SECONDS = 0.05
"""Time to read after the end of a command whose output is still open, for output that other processes pass on."""

_PRESSES = 2
_TRIES = 6
_POLL_SECONDS = 0.02


class CommandExchange:
    """One command in bash: reads its output and recognises or forces its end. Times are in seconds."""

    def __init__(self, bash: Bash) -> None:
        self.bash = bash
        self.began = time.monotonic()
        self.ticks = boot_ticks()
        self.token = secrets.token_hex(16)
        self.streams: list[OutputStream] = []
        self.report = ""
        """The order to report the end of the command; empty until the command is sent."""
        self.mark: Mark | None = None
        self.taken = 0
        """Number of bytes of output so far."""
        self._reader = MarkReader(self.token)
        self._exited = False

    @property
    def over(self) -> bool:
        """Whether the command or bash has ended."""
        return self.mark is not None or self._exited

    def follow(self, seconds: float) -> Steps[None]:
        """Read output until the end of the command, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.over and (left := deadline - time.monotonic()) > 0:
            watched = {stream.descriptor: stream for stream in self.streams if stream.descriptor is not None}
            signs = self.bash.signs
            # Without a descriptor for the end of a process (not on Linux), poll.
            ready = yield AwaitReadable(
                (*watched, *signs), left if self.bash.exit in signs else min(left, _POLL_SECONDS)
            )
            for descriptor in ready & watched.keys():
                yield from self._take(watched[descriptor])
            if self.bash.control in ready:
                self.mark = self._reader.feed(self.bash.listen())
            if self.mark is None:
                self._exited = self.bash.process.poll() is not None

    def stop(self, grace: float, kill: Callable[[set[int], int], object]) -> Steps[None]:
        """End the command: with Ctrl-C, then by killing its processes, then by killing bash.

        Why Ctrl-C twice: if a program of a list ends just when the first arrives, bash assumes that the program has
        handled it, and continues with the next one. `kill(spare, since)` kills the processes that the shell has started
        since a time, except those in `spare`.
        """
        for _ in range(_PRESSES):
            if not self.over:
                self._interrupt()
                yield from self.follow(grace / _PRESSES)
        for _ in range(_TRIES):
            if self.over:
                return
            yield Work(partial(kill, {self.bash.process.pid, self.bash.group}, self.ticks))
            self._interrupt()  # after a kill bash continues with the next command of a loop
            yield from self.follow(grace / _TRIES)
        _log.info("shell.killed", reason="it did not come back after Ctrl-C")
        self.bash.kill()
        yield from self.follow(LAST_RESORT_SECONDS)

    def _interrupt(self) -> None:
        """Send Ctrl-C, and the order to report again, because Ctrl-C may have stopped the report."""
        self.bash.interrupt()
        self.bash.send(self.report)

    def take_available(self) -> Steps[None]:
        """Read what is in the pipes now. Each knows then whether the command has opened it."""
        for stream in self.streams:
            yield from self._take(stream)

    def take_rest(self) -> Steps[None]:
        """Read the rest of the output: what is in the pipes, and what other processes write directly after the end."""
        end = time.monotonic() + _STRAGGLE_SECONDS
        for stream in self.streams:
            taken = 0
            while stream.descriptor is not None:
                more = yield from self._take(stream)
                taken += more
                left = end - time.monotonic()
                if left <= 0 and (not more or taken > PIPE_SIZE):  # the command itself cannot have left more
                    break
                if not more and stream.descriptor is not None:
                    yield AwaitReadable((stream.descriptor,), left)

    def _take(self, stream: OutputStream) -> Steps[int]:
        """Read the available bytes of an stream; returns their number."""
        data = stream.read()
        self.taken += len(data or b"")
        if data == b"":
            stream.end()
        elif data:
            if stream.recorded or stream.capture.overflows(len(data)):
                yield Work(partial(stream.take, data))
            else:
                stream.take(data)
        return len(data or b"")
