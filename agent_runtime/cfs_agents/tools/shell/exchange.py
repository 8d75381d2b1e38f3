"""One command on its way: its output is taken, its end is recognised, or brought about (A5)."""

import secrets
import time
from collections.abc import Callable
from functools import partial

import structlog

from cfs_agents.tools.shell.census import boot_ticks
from cfs_agents.tools.shell.framing import Mark, MarkReader
from cfs_agents.tools.shell.outlets import PIPE_SIZE, Outlet
from cfs_agents.tools.shell.process import Bash
from cfs_agents.tools.shell.steps import Readable, Steps, Work

_log = structlog.get_logger(__name__)

LAST_RESORT_SECONDS = 20.0
"""How long something may take that takes milliseconds: the start of bash, its end after SIGKILL."""

_STRAGGLE_SECONDS = 0.05
"""How long to read on after the end of a command whose output is still open: for what it wrote by way of others."""

_PRESSES = 2
_TRIES = 6
_POLL_SECONDS = 0.02


class Exchange:
    """A command that bash was given, or will be. Times are in seconds."""

    def __init__(self, bash: Bash) -> None:
        self.bash = bash
        self.began = time.monotonic()
        self.ticks = boot_ticks()
        self.token = secrets.token_hex(16)
        self.outlets: list[Outlet] = []
        self.report = ""
        """The order to tell the end of the command; empty as long as the command was not sent."""
        self.mark: Mark | None = None
        self._reader = MarkReader(self.token)
        self._exited = False

    @property
    def over(self) -> bool:
        """Whether the command, or bash, has ended."""
        return self.mark is not None or self._exited

    def follow(self, seconds: float) -> Steps[None]:
        """Take what comes until it is over or the time is."""
        deadline = time.monotonic() + seconds
        while not self.over and (left := deadline - time.monotonic()) > 0:
            watched = {outlet.descriptor: outlet for outlet in self.outlets if outlet.descriptor is not None}
            signs = self.bash.signs
            # Without a descriptor for the end of a process (not on Linux) one has to look now and then.
            ready = yield Readable((*watched, *signs), left if self.bash.exit in signs else min(left, _POLL_SECONDS))
            for descriptor in ready & watched.keys():
                yield from self._take(watched[descriptor])
            if self.bash.control in ready:
                self.mark = self._reader.feed(self.bash.listen())
            if self.mark is None:
                self._exited = self.bash.process.poll() is not None

    def stop(self, grace: float, kill: Callable[[set[int], int], object]) -> Steps[None]:
        """Bring it to its end: as Ctrl-C does, then by force, then with bash.

        Why Ctrl-C twice: when a program of a list ends by itself just as the first comes, bash takes it that the
        program has dealt with it, and goes on with the next. `kill(spare, since)` kills what the shell started since
        a time, but for some processes.
        """
        for _ in range(_PRESSES):
            if not self.over:
                self._interrupt()
                yield from self.follow(grace / _PRESSES)
        for _ in range(_TRIES):
            if self.over:
                return
            yield Work(partial(kill, {self.bash.process.pid, self.bash.group}, self.ticks))
            self._interrupt()  # bash goes on with the next command of a loop when the last was killed
            yield from self.follow(grace / _TRIES)
        _log.info("shell.killed", reason="it did not come back after Ctrl-C")
        self.bash.kill()
        yield from self.follow(LAST_RESORT_SECONDS)

    def _interrupt(self) -> None:
        """Press Ctrl-C, and ask again for the report: it may be the report that bash gives up."""
        self.bash.interrupt()
        self.bash.send(self.report)

    def take_rest(self) -> Steps[None]:
        """Take what it wrote before it was over: all that is in its pipes, and what stragglers write right after."""
        end = time.monotonic() + _STRAGGLE_SECONDS
        for outlet in self.outlets:
            taken = 0
            while outlet.descriptor is not None:
                more = yield from self._take(outlet)
                taken += more
                left = end - time.monotonic()
                if left <= 0 and (not more or taken > PIPE_SIZE):  # more than was there came from others
                    break
                if not more and outlet.descriptor is not None:
                    yield Readable((outlet.descriptor,), left)

    def _take(self, outlet: Outlet) -> Steps[int]:
        """Take what an outlet has; returns how many bytes that were."""
        data = outlet.read()
        if data == b"":
            outlet.end()
        elif data:
            if outlet.recorded or outlet.capture.overflows(len(data)):
                yield Work(partial(outlet.take, data))
            else:
                outlet.take(data)
        return len(data or b"")
