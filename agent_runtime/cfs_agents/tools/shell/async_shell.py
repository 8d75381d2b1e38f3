"""A persistent shell for coroutines (A5)."""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs_agents.tools.shell.core import ShellCore
from cfs_agents.tools.shell.results import Job, ShellResult
from cfs_agents.tools.shell.settings import ShellSettings
from cfs_agents.tools.shell.steps import async_take


class AsyncShell:
    """One bash that is kept: directory, variables, functions, aliases and options persist from command to command.

    It starts with the first command, and again when it has ended. Several tasks may use it; they take turns.
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

    async def run(self, command: str, *, timeout: float | None = None, directory: Path | None = None) -> ShellResult:
        """Run a command and wait for its end; `timeout` in seconds instead of the settings', in `directory` for once.

        A cancellation ends the command as a time-out does: the shell lives on. Raises what `Shell.run` raises.
        """
        async with self._turn:
            return await async_take(self._core.run(command, timeout, directory))

    async def background(self, command: str, *, directory: Path | None = None) -> Job:
        """Start a command and do not wait for it; its output goes to a file. It ends with the shell at the latest."""
        async with self._turn:
            return await async_take(self._core.background(command, directory))

    @property
    def directory(self) -> Path:
        """Where the next command runs."""
        return self._core.directory

    async def close(self) -> None:
        """End the shell and every process that it started, also a command that another task waits for."""
        self._core.closed = True
        if self._turn.locked():
            self._core.abandon()
        async with self._turn:
            await async_take(self._core.close())
