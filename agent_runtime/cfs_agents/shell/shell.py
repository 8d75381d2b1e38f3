"""Persistent shells for blocking code and for coroutines: one bash that keeps its state between commands (A5)."""

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs_agents.base.logs import get_logger
from cfs_agents.base.threads import in_thread
from cfs_agents.shell.core import ShellCore
from cfs_agents.shell.jobs import JobProcess
from cfs_agents.shell.results import Job, ShellResult
from cfs_agents.shell.settings import ShellSettings
from cfs_agents.shell.steps import async_take, take

_log = get_logger(__name__)


class AsyncPersistentShell:
    """One bash for coroutines. Directory, variables, functions, aliases and options persist between commands.

    It starts with the first command, and again if it has ended. Several tasks may use it; their commands run in order.
    """

    def __init__(self, settings: ShellSettings) -> None:
        self.settings = settings
        self._core = ShellCore(settings)
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        directory: Path | None = None,
        merge: bool | None = None,
    ) -> ShellResult:
        """Run a command; `timeout` (seconds), `merge` and `directory` apply to this command only.

        A cancellation ends the command like a time-out, and the shell keeps its state. Raises the same errors as
        `PersistentShell.run`.
        """
        async with self._turn:
            return await async_take(self._core.run(command, timeout, directory, merge))

    async def background(self, command: str, *, directory: Path | None = None) -> Job:
        """Start a command without waiting for it; its output goes to a file. It ends at the latest with the shell."""
        async with self._turn:
            return await async_take(self._core.background(command, directory))

    async def watch(self, job: Job) -> JobProcess:
        """Return the process of a job that has just been started."""
        return await in_thread(lambda: self._core.process_of(job))

    async def wait_for(self, process: JobProcess, seconds: float) -> None:
        """Wait for the end of a job, for at most `seconds`. Other commands may run meanwhile."""
        await async_take(process.waiting(seconds))

    async def end(self, process: JobProcess) -> None:
        """End all processes of a job."""
        await async_take(process.ending(self.settings.grace))

    async def log_since(self, job: Job, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return the last `max_bytes` of a job's log behind an offset, and the size of the log."""
        return await in_thread(lambda: self._core.log_since(job, offset, max_bytes))

    async def left_processes(self) -> dict[int, str]:
        """Return the processes that commands have left behind, with their command lines."""
        return await in_thread(self._core.left_processes)

    @property
    def directory(self) -> Path:
        """Directory of the next command."""
        return self._core.directory

    async def close(self) -> None:
        """End the shell and all processes that it started, including a command that another task waits for."""
        self._core.closed = True
        if self._turn.locked():
            self._core.abandon()
        async with self._turn:
            await async_take(self._core.close())


class PersistentShell:
    """One bash for blocking code. Directory, variables, functions, aliases and options persist between commands.

    It starts with the first command, and again if it has ended. Several threads may use it; their commands run in
    order.
    """

    def __init__(self, settings: ShellSettings) -> None:
        self.settings = settings
        self._core = ShellCore(settings)
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        directory: Path | None = None,
        merge: bool | None = None,
    ) -> ShellResult:
        """Run a command; `timeout` (seconds), `merge` and `directory` apply to this command only.

        Raises `ShellUnavailable` if bash cannot start, `ShellClosed` after `close`, `NotADirectoryError` for an invalid
        `directory`, and `ValueError` for a command with NUL.
        """
        with self._turn:
            return take(self._core.run(command, timeout, directory, merge))

    def background(self, command: str, *, directory: Path | None = None) -> Job:
        """Start a command without waiting for it; its output goes to a file. It ends at the latest with the shell."""
        with self._turn:
            return take(self._core.background(command, directory))

    def close(self) -> None:
        """End the shell and all processes that it started, including a command that another thread waits for."""
        self._core.closed = True
        if self._turn.locked():
            self._core.abandon()
        with self._turn:
            take(self._core.close())
