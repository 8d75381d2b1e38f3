"""Which processes belong to a shell, and the ending of them (B8). Linux; elsewhere only the process group is known.

    python -I -S census.py COOKIE DIRECTORY

As a program it waits for the end of its standard input, then kills what has the cookie in its environment and removes
the directory: see `warden.py`. It needs nothing but the standard library, so it is there at once and small.
"""

import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PASSES = 100
_READ = 0 if os.uname().machine == "x86_64" else 63
"""Number of the system call `read`."""
_TERMINALS = frozenset({4, *range(136, 144)})
"""Major numbers of the devices that are terminals (Linux)."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    session: int
    started: int
    alive: bool


def new_cookie() -> str:
    """Make a word that nobody else has."""
    return secrets.token_hex(16)


def boot_ticks() -> int:
    """Return the time since the machine started, in the unit in which the system keeps the starts of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS) if hasattr(time, "CLOCK_BOOTTIME") else 0


def members(sessions: AbstractSet[int], cookie: str, since: int = 0) -> set[int]:
    """Find the living processes of a shell that were started at or after a time (`boot_ticks`).

    A process belongs if it is in one of the shell's sessions, has the shell's cookie in its environment, or if its
    parent belongs. To get away from that it must leave the session, lose its parent and clear its environment.
    """
    mark = cookie.encode()
    processes = list(_processes())
    mine = {each.pid for each in processes if each.session in sessions or mark in _environment(each.pid)}
    while more := {each.pid for each in processes if each.parent in mine} - mine:
        mine |= more
    return {each.pid for each in processes if each.pid in mine and each.alive and each.started >= since}


def kill_all(
    sessions: AbstractSet[int],
    cookie: str,
    spare: AbstractSet[int] = frozenset(),
    since: int = 0,
    passes: int = _PASSES,
) -> bool:
    """Kill the processes of a shell until there are none; tell whether that came to an end.

    A process that starts others faster than they are found is stopped first, so that each pass leaves fewer.
    """
    for _ in range(passes):
        found = members(sessions, cookie, since) - spare
        if not found:
            return True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.001)  # the kernel takes them away after the signal
    return False


def awaits_input(pid: int) -> bool:
    """Return whether a process is blocked in a read from a terminal and takes Ctrl-C.

    A background process ignores Ctrl-C, so nobody waits for it. Where the system does not say what a process is doing,
    the answer is no.
    """
    with suppress(OSError, ValueError, IndexError):
        process = _PROC / str(pid)
        number, descriptor = (process / "syscall").read_text().split()[:2]
        if int(number) != _READ:
            return False
        status = (process / f"fd/{int(descriptor, 16)}").stat()
        ignored = int((process / "status").read_text().partition("SigIgn:")[2].split()[0], 16)
        return status.st_rdev != 0 and os.major(status.st_rdev) in _TERMINALS and not ignored & 1 << signal.SIGINT - 1
    return False


def tasks_of(user: int) -> int:
    """Count processes and threads of a user, as the system does for its limit; 0 where nobody can say."""
    count = 0
    for name in os.listdir(_PROC) if _PROC.exists() else ():  # noqa: PTH208 - names are all that is wanted
        if name.isdigit():
            with suppress(OSError):
                if (_PROC / name).stat().st_uid == user:
                    count += (_PROC / name / "task").stat().st_nlink - 2
    return count


def _processes() -> Iterator[_Process]:
    for name in os.listdir(_PROC) if _PROC.exists() else ():  # noqa: PTH208 - names are all that is wanted
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                text = (_PROC / name / "stat").read_bytes()
                fields = text[text.rindex(b")") + 2 :].split()  # the program's name may hold anything
                yield _Process(int(name), int(fields[1]), int(fields[3]), int(fields[19]), fields[0] not in b"ZX")


def _environment(pid: int) -> bytes:
    with suppress(OSError):
        return (_PROC / str(pid) / "environ").read_bytes()
    return b""


def _main() -> None:
    while os.read(0, 4096):
        pass
    kill_all(frozenset(), sys.argv[1])
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    _main()
