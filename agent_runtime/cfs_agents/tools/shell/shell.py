"""A persistent shell for blocking code (A5)."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs_agents.tools.shell.core import ShellCore
from cfs_agents.tools.shell.results import Job, ShellResult
from cfs_agents.tools.shell.settings import ShellSettings
from cfs_agents.tools.shell.steps import take


class Shell:
    """One bash that is kept: directory, variables, functions, aliases and options persist from command to command.

    It starts with the first command, and again when it has ended. Several threads may use it; they take turns.
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

    def run(self, command: str, *, timeout: float | None = None, directory: Path | None = None) -> ShellResult:
        """Run a command and wait for its end; `timeout` in seconds instead of the settings', in `directory` for once.

        Raises `ShellUnavailable` when bash cannot be started, `ShellClosed`, `ValueError` for a NUL in the command.
        """
        with self._turn:
            return take(self._core.run(command, timeout, directory))

    def background(self, command: str, *, directory: Path | None = None) -> Job:
        """Start a command and do not wait for it; its output goes to a file. It ends with the shell at the latest."""
        with self._turn:
            return take(self._core.background(command, directory))

    def close(self) -> None:
        """End the shell and every process that it started, also a command that another thread waits for."""
        self._core.closed = True
        if self._turn.locked():
            self._core.abandon()
        with self._turn:
            take(self._core.close())
