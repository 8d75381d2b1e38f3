"""The process of a background job: whether it runs, and how it is ended (A5, B8)."""

import os
import select
import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial

from cfs_agents.shell.census import members_of_job, pid_inside
from cfs_agents.shell.results import Job
from cfs_agents.shell.steps import AwaitReadable, Steps, Work

_PASSES = 20
_PAUSE = 0.01


class JobProcess:
    """The process of a job, watched from outside of its shell and its sandbox. It needs Linux.

    `shell` returns the living processes of the shell.
    """

    def __init__(self, job: Job, shell: Callable[[], AbstractSet[int]]) -> None:
        """Find the process among those of its shell. Blocks for some milliseconds."""
        self._mark = job.mark
        self._shell = shell
        self._pid = next((pid for pid in shell() if pid_inside(pid) == job.pid), -1)
        self._descriptor: int | None = None
        with suppress(OSError, AttributeError):  # it has just ended, or the system has no such descriptors
            self._descriptor = os.pidfd_open(self._pid) if self._pid > 0 else None

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        if self._descriptor is None:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def waiting(self, seconds: float) -> Steps[None]:
        """Wait for the end of the process, for at most `seconds`."""
        if self._descriptor is not None:
            yield AwaitReadable((self._descriptor,), seconds)

    def ending(self, grace: float) -> Steps[None]:
        """Ask the processes of the job to end, and kill those that have not after `grace` seconds."""
        yield Work(partial(self._signal, signal.SIGTERM))
        yield from self.waiting(grace)
        for _ in range(_PASSES):
            left: bool = yield Work(partial(self._signal, signal.SIGKILL))
            if not left:
                break
            yield from self.waiting(_PAUSE)

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _signal(self, number: int) -> bool:
        """Send a signal to all processes of the job; returns whether there was one."""
        pids = members_of_job(self._pid, self._mark, self._shell())
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return bool(pids)
