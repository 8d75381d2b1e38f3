"""What this process has open, to see what a test adds to it.

Only what is new counts: what earlier tests left behind may end at any time, by the garbage collector or by itself.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Census:
    """Descriptors with what they lead to, threads, and child processes at one moment."""

    descriptors: frozenset[tuple[int, str]]
    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @classmethod
    def now(cls) -> "Census":
        """Look at this process."""
        children = frozenset(child.pid for child in psutil.Process().children(recursive=True))
        return cls(frozenset(_descriptors()), frozenset(threading.enumerate()), children)

    def added(self) -> list[str]:
        """Tell what there is now that there was not then, a line each."""
        for thread in frozenset(threading.enumerate()) - self.threads:
            if thread.name.startswith("asyncio-waitpid"):  # it says that a child is gone, and ends by itself then
                thread.join(10)
        now = Census.now()
        return [
            *(f"descriptor {number}: {target}" for number, target in sorted(now.descriptors - self.descriptors)),
            *(f"thread {thread.name}" for thread in now.threads - self.threads),
            *(f"process {child}" for child in sorted(now.children - self.children)),
        ]


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append((int(entry.name), str(entry.readlink())))
        except FileNotFoundError:  # the one by which the folder is read
            continue
    return found
