"""What this process has open, to see what a test adds to it.

Only what is new counts: what earlier tests left behind may end at any time, by the garbage collector or by itself.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.fork_server import traces


@dataclass(frozen=True)
class Census:
    """Descriptors with what they lead to, threads, and child processes at one moment."""

    descriptors: frozenset[tuple[int, str]]
    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @classmethod
    def now(cls) -> "Census":
        """Look at this process."""
        children = {child.pid for child in psutil.Process().children(recursive=True)}
        descriptors = _descriptors()
        for process, descriptor in traces():  # of the fork servers, which stay until the end
            children.discard(process)
            descriptors = [found for found in descriptors if found[0] != descriptor]
        return cls(frozenset(descriptors), frozenset(threading.enumerate()), frozenset(children))

    def added(self) -> list[str]:
        """Tell what there is now that there was not then, a line each."""
        new = frozenset(threading.enumerate()) - self.threads
        watchers = {thread for thread in new if thread.name.startswith("asyncio-waitpid")}  # each ends with its child
        while any(thread.is_alive() for thread in watchers) and self._ended_children():
            next(iter(watchers)).join(0.01)
        now = Census.now()
        return [
            *(f"descriptor {number}: {target}" for number, target in sorted(now.descriptors - self.descriptors)),
            *(f"thread {thread.name}" for thread in now.threads - self.threads - watchers),
            *(f"process {child}" for child in sorted(now.children - self.children)),
        ]

    def _ended_children(self) -> bool:
        """Whether a child of after this moment has ended, and nothing has taken notice yet."""
        return any(_ended(child) for child in psutil.Process().children(True) if child.pid not in self.children)


def _ended(child: psutil.Process) -> bool:
    try:
        return bool(child.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append((int(entry.name), str(entry.readlink())))
        except FileNotFoundError:  # the one by which the folder is read
            continue
    return found
