"""A shell for the tests, the blocking and the asynchronous one behind one face; and counts of what is left behind."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from blockbuster import blockbuster_ctx

from cfs_agents.shell import AsyncPersistentShell, Job, PersistentShell, ShellResult, ShellSettings

_T = TypeVar("_T")

GUARD_SECONDS = 60.0
"""No wait of these tests takes longer, unless something is broken."""

SLEEP = f"1357.{os.getpid()}"
"""Seconds that only sleeping processes of this run of tests have as an argument: others may run beside it."""

STRANGER = 48_611 + os.getpid() % 10_000
"""A user who has no process but those of this run."""


class AnyShell(Protocol):
    """What both shells can do."""

    def run(self, command: str, *, timeout: float | None = None, directory: Path | None = None) -> ShellResult:
        """Run a command."""
        ...

    def background(self, command: str, *, directory: Path | None = None) -> Job:
        """Start a job."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class InALoop:
    """An `AsyncPersistentShell` in a loop of its own, in which nothing may block."""

    def __init__(self, settings: ShellSettings) -> None:
        self._closed = False
        self._runner = asyncio.Runner()
        self._runner.get_loop()
        self._shell = self._do(self._make(settings))

    def run(self, command: str, *, timeout: float | None = None, directory: Path | None = None) -> ShellResult:
        """Run a command."""
        return self._do(self._shell.run(command, timeout=timeout, directory=directory))

    def background(self, command: str, *, directory: Path | None = None) -> Job:
        """Start a job."""
        return self._do(self._shell.background(command, directory=directory))

    def close(self) -> None:
        """End it and its loop."""
        if not self._closed:
            self._do(self._shell.close())
            self._runner.close()
        self._closed = True

    async def _make(self, settings: ShellSettings) -> AsyncPersistentShell:
        return AsyncPersistentShell(settings)

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        with blockbuster_ctx():
            return self._runner.run(work)


KINDS: dict[str, Callable[[ShellSettings], AnyShell]] = {"sync": PersistentShell, "async": InALoop}


def given_up(shell: AnyShell, command: str, begun: Path) -> ShellResult:
    """Run a command that makes the file `begun`, and then goes on for ever, until its time is up.

    Where it had not come so far, which may be so on a busy machine, it runs again with more time.
    """
    for seconds in (0.3, 3.0):
        result = shell.run(command, timeout=seconds)
        if begun.exists():
            return result
    return shell.run(command, timeout=GUARD_SECONDS)


def until(condition: Callable[[], object], what: str | Callable[[], object] = "") -> None:
    """Look again and again until something has become true; `what` says in the end why it has not."""
    end = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < end, (what() if callable(what) else what) or "it never came true"
        time.sleep(0.005)


async def comes(path: Path) -> None:
    """Wait until there is a file."""
    await asyncio.to_thread(until, path.exists)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def with_argument(word: str) -> list[int]:
    """Find the living processes that have a word among their arguments."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and is_alive(int(each.name)):
            try:
                if word.encode() in (each / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(each.name))
            except OSError:
                continue
    return found
