"""Finds and kills the processes of a shell (B8). It needs Linux; elsewhere only the process group is known.

    python -I -S census.py COOKIE DIRECTORY

As a program it waits for the end of its standard input. Then it kills all processes that have the cookie in their
environment, and removes the directory (see `Reaper`). Each runtime with a shell starts it, so it imports only what a
bare interpreter has nearly at once: `dataclasses`, `pathlib` and `secrets` would take three times as long as all else.
"""

# ruff: noqa: PTH116, PTH123, PTH208
import os
import signal
import sys
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress

_PROC = "/proc"
_TICKS = os.sysconf("SC_CLK_TCK")
_PASSES = 100
_READ = 0 if os.uname().machine == "x86_64" else 63
"""Number of the system call `read`."""
_TERMINALS = frozenset({4, *range(136, 144)})
"""Major numbers of the devices that are terminals (Linux)."""
_COOKIE_BYTES = 16


class _Process:
    __slots__ = ("alive", "group", "parent", "pid", "session", "started")

    def __init__(self, pid: int, parent: int, group: int, session: int, started: int, alive: bool) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.session = session
        self.started = started
        self.alive = alive


def new_cookie() -> str:
    """Return a random word that marks the processes of one shell."""
    return os.urandom(_COOKIE_BYTES).hex()


def boot_ticks() -> int:
    """Return the time since the machine started, in the unit of the start times of processes (clock ticks)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS) if hasattr(time, "CLOCK_BOOTTIME") else 0


def members(sessions: AbstractSet[int], cookie: str, since: int = 0) -> set[int]:
    """Return the living processes of a shell that started at or after `since` (`boot_ticks`).

    A process belongs to the shell if it is in one of the shell's sessions, has the shell's cookie in its environment,
    or has a parent that belongs. A process that leaves the session, loses its parent and clears its environment is not
    found.
    """
    mark = cookie.encode()
    processes = list(_processes())
    mine = {process.pid for process in processes if process.session in sessions or mark in _environment(process.pid)}
    while more := {process.pid for process in processes if process.parent in mine} - mine:
        mine |= more
    return {process.pid for process in processes if process.pid in mine and process.alive and process.started >= since}


def kill_all(
    sessions: AbstractSet[int],
    cookie: str,
    spare: AbstractSet[int] = frozenset(),
    since: int = 0,
    passes: int = _PASSES,
) -> bool:
    """Kill the processes of a shell until none is left, `passes` times at most; returns whether none is left.

    Each process is stopped before it is killed, so that it cannot start others faster than they are found.
    """
    for _ in range(passes):
        pids = members(sessions, cookie, since) - spare
        if not pids:
            return True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.001)  # the kernel removes them some time after the signal
    return False


def members_of_job(group: int, mark: str, candidates: AbstractSet[int]) -> set[int]:
    """Return the processes of a job: its process group, the programs with its mark, and their children.

    They are among the candidates, the processes of its shell: another program may have the number of the group by now.
    """
    text = mark.encode()
    processes = [process for process in _processes() if process.pid in candidates]
    mine = {process.pid for process in processes if process.group == group or text in _environment(process.pid)}
    while more := {process.pid for process in processes if process.parent in mine} - mine:
        mine |= more
    return mine


def pid_inside(pid: int) -> int | None:
    """Return the id that a process has in its own namespace; None if it has ended, or if there is no /proc."""
    with suppress(OSError, ValueError, IndexError):
        return int(_read(f"{pid}/status").partition(b"NSpid:")[2].splitlines()[0].split()[-1])
    return None


def left_behind(pids: AbstractSet[int], own: AbstractSet[int]) -> dict[int, str]:
    """Return the processes of a shell, except bash and its sandbox, with their command lines.

    `own` are the first processes of the shell that runs, if one does. A process that has not started a program, such
    as a loop in the background, is called "bash".
    """
    left: dict[int, str] = {}
    shells: list[_Process] = []
    for process in _processes():
        if process.pid in pids and process.alive:
            words = _words(process.pid)
            if words[:1] == ["bash"] and words[-2:] == ["-i", "-s"]:
                shells.append(process)
            elif words and process.pid not in own:
                left[process.pid] = " ".join(words)
    for process in sorted(shells, key=lambda shell: (shell.started, shell.pid))[bool(own) :]:
        left[process.pid] = "bash"
    return left


def _words(pid: int) -> list[str]:
    with suppress(OSError):
        text = _read(f"{pid}/cmdline").decode("utf-8", "replace")
        return text.removesuffix("\0").split("\0")
    return []


def awaits_input(pid: int) -> bool:
    """Return whether a process is blocked in a read from a terminal and does not ignore Ctrl-C.

    Background processes ignore Ctrl-C, and no command waits for them. Returns False if the system does not report the
    state of the process.
    """
    with suppress(OSError, ValueError, IndexError):
        number, descriptor = _read(f"{pid}/syscall").split()[:2]
        if int(number) != _READ:
            return False
        status = os.stat(f"{_PROC}/{pid}/fd/{int(descriptor, 16)}")
        ignored = int(_read(f"{pid}/status").partition(b"SigIgn:")[2].split()[0], 16)
        return status.st_rdev != 0 and os.major(status.st_rdev) in _TERMINALS and not ignored & 1 << signal.SIGINT - 1
    return False


def tasks_of(user: int) -> int:
    """Count the processes and threads of a user, as the system does for its limit; 0 if there is no /proc."""
    count = 0
    for name in _numbers():
        with suppress(OSError):
            if os.stat(f"{_PROC}/{name}").st_uid == user:
                count += os.stat(f"{_PROC}/{name}/task").st_nlink - 2
    return count


def _processes() -> Iterator[_Process]:
    for name in _numbers():
        with suppress(OSError, ValueError, IndexError):
            text = _read(f"{name}/stat")
            fields = text[text.rindex(b")") + 2 :].split()  # the program's name may contain any character
            yield _Process(
                int(name), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), fields[0] not in b"ZX"
            )


def _environment(pid: int) -> bytes:
    with suppress(OSError):
        return _read(f"{pid}/environ")
    return b""


def _numbers() -> list[str]:
    """Return the numbers of all processes; none if there is no /proc."""
    with suppress(OSError):
        return [name for name in os.listdir(_PROC) if name.isdigit()]
    return []


def _read(place: str) -> bytes:
    with open(f"{_PROC}/{place}", "rb") as file:
        return file.read()


def _main() -> None:
    cookie, directory = sys.argv[1:]
    if len(cookie) < 2 * _COOKIE_BYTES:
        sys.exit("a short cookie may stand in the environment of any process")
    while os.read(0, 4096):
        pass
    kill_all(frozenset(), cookie)
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main()
