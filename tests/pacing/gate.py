"""A gate before each step of an engine's worker: what happens between two steps is up to the test.

A test that needs a turn that still runs closes the gate. No machine is quick enough to end the turn meanwhile, and none
is so slow that it would make a difference.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfs_server.engine.process import COMMAND, Heartbeat
from tests.pacing import python_path
from tests.pacing.sitecustomize import AHEAD, LIMIT, MADE, NUMBER, SECONDS, SIZE

ALL = 1 << 62
PATIENT = Heartbeat(limit=3600.0)
"""For engines behind a gate: a worker that is held answers nothing, which does not mean that it hangs."""


class Gate:
    """Says when the workers behind it may make a step. At first it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), SIZE)
        self._ahead = 0.0
        self.open()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a server whose workers are to be behind the gate."""
        return {"PYTHONPATH": python_path(), "PACE_GATE": str(self._path)}

    @property
    def command(self) -> tuple[str, ...]:
        """The command of a worker behind the gate."""
        return ("/usr/bin/env", *(f"{name}={value}" for name, value in self.environment.items()), *COMMAND)

    @property
    def steps(self) -> int:
        """How many steps were begun until now."""
        return int(NUMBER.unpack_from(self._shared, MADE)[0])

    def open(self) -> None:
        """Let the workers run."""
        NUMBER.pack_into(self._shared, LIMIT, ALL)

    def close(self, after: int = 0) -> None:
        """Hold the workers, at once or after some more steps."""
        NUMBER.pack_into(self._shared, LIMIT, self.steps + after)

    def pass_time(self, seconds: float) -> None:
        """Set the clocks of the workers forward."""
        self._ahead += seconds
        SECONDS.pack_into(self._shared, AHEAD, self._ahead)


@contextmanager
def closed(gate: Gate, after: int = 0) -> Iterator[Gate]:
    """Close a gate for the length of a block."""
    gate.close(after)
    try:
        yield gate
    finally:
        gate.open()
