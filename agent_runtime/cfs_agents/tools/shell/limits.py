"""What the processes of a shell may use at most: the arguments of `ulimit`, and what is usual for an agent."""

import os
import resource

from cfs_agents.tools.shell.census import tasks_of
from cfs_agents.tools.shell.settings import Limits

_GIB = 1 << 30


def usual_limits() -> Limits:
    """Say what an agent's commands may use unless somebody decides otherwise (A5).

    Enough for compilers, tests and servers, and far from what takes the machine down: 1,000 processes more than there
    are, an hour of processor time, files of 16 GiB, and as memory half of the machine's, at least 8 GiB.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return Limits(processes=1_000, cpu_seconds=3_600, file_bytes=16 * _GIB, memory_bytes=max(half, 8 * _GIB))


def ulimits(limits: Limits, user: int, *, cores: bool = False) -> list[str]:
    """Write limits for a user as arguments of `ulimit`, none above what the system allows.

    Without `cores` there are no core dumps.
    """
    processes = limits.processes and limits.processes + tasks_of(user)
    given = [
        ("u", resource.RLIMIT_NPROC, processes, 1),
        ("t", resource.RLIMIT_CPU, limits.cpu_seconds, 1),
        ("f", resource.RLIMIT_FSIZE, limits.file_bytes, 1024),
        ("v", resource.RLIMIT_AS, limits.memory_bytes, 1024),
    ]
    return [
        *([] if cores else ["-c 0"]),
        *(f"-{letter} {_allowed(kind, most) // unit}" for letter, kind, most, unit in given if most is not None),
    ]


def _allowed(kind: int, most: int) -> int:
    """Bound a limit by the one that we have ourselves: it could not be raised."""
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
