"""What processes cost, and how a peer's process is started and ended."""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

GENTLE_SECONDS = 20.0
"""So long a process may take to end."""


def family(pid: int) -> list[psutil.Process]:
    """List a process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """CPU time that these processes have used so far; one that has ended counts nothing."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def resident_mib(processes: Sequence[psutil.Process]) -> float:
    """Memory that these processes hold, in MiB."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / (1 << 20)


def free_port() -> int:
    """Find a port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def spawn(
    command: Sequence[str | Path], log: Path, *, quiet: bool = False, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start a peer. What it says to people goes to a file; with `quiet` what it prints goes there as well."""
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=subprocess.PIPE,
            stdout=file if quiet else subprocess.PIPE,
            stderr=file,
            limit=1 << 20,
            env={**os.environ, **(environment or {})},
        )


async def end(process: asyncio.subprocess.Process, *, gently: bool = False) -> None:
    """End a process and all below it, and wait until it is gone, but not for ever; `gently` asks it first."""
    if process.returncode is None and gently:
        process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GENTLE_SECONDS)
    for each in family(process.pid) if process.returncode is None else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), GENTLE_SECONDS)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:200] if lines else ""
    return ""
