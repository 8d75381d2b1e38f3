"""What the commands of a shell may use of the machine."""

import os
import resource
from dataclasses import dataclass

from cfs_agents.shell.census import tasks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of each process of the shell. None keeps the limit of the runtime.

    `processes` is the number of processes and threads that the user may have in addition to those at the start of the
    shell. For root it applies only in a sandbox. `memory_bytes` counts reserved memory, used or not.
    """

    processes: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = None
    memory_bytes: int | None = None


_GIB = 1 << 30


def usual_limits() -> Limits:
    """Return the default limits of an agent's commands (A5).

    They are enough for compilers, tests and servers, and protect the machine: 1,000 additional processes, an hour of
    processor time, files of 16 GiB, and half of the machine's memory, but at least 8 GiB.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return Limits(processes=1_000, cpu_seconds=3_600, file_bytes=16 * _GIB, memory_bytes=max(half, 8 * _GIB))


def ulimits(limits: Limits, user: int, *, cores: bool = False) -> list[str]:
    """Return limits for a user as arguments of `ulimit`, none above the hard limits of the runtime.

    Without `cores` there are no core dumps.
    """
    processes = limits.processes and limits.processes + tasks_of(user)
    bounds = [
        ("u", resource.RLIMIT_NPROC, processes, 1),
        ("t", resource.RLIMIT_CPU, limits.cpu_seconds, 1),
        ("f", resource.RLIMIT_FSIZE, limits.file_bytes, 1024),
        ("v", resource.RLIMIT_AS, limits.memory_bytes, 1024),
    ]
    return [
        *([] if cores else ["-c 0"]),
        *(
            f"-{letter} {_allowed(kind, maximum) // unit}"
            for letter, kind, maximum, unit in bounds
            if maximum is not None
        ),
    ]


def _allowed(kind: int, maximum: int) -> int:
    """Return the limit, or the hard limit of the runtime if that is lower."""
    hard = resource.getrlimit(kind)[1]
    return maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
