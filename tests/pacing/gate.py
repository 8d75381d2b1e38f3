"""A gate before each step of an engine's worker: what happens between two steps is up to the test.

A test that needs a turn that still runs closes the gate. No machine is quick enough to end the turn meanwhile, and none
is so slow that it would make a difference.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pacing import python_path
from tests.pacing.sitecustomize import AHEAD, LIMIT, MADE, NUMBER, SECONDS, SIZE

ALL = 1 << 62
STEPS = 150
"""Enough for a few short prompts to be read and their replies to begin, and far too few for the end of a long one."""


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
    def steps(self) -> int:
        """How many steps were begun until now."""
        return int(NUMBER.unpack_from(self._shared, MADE)[0])

    def open(self) -> None:
        """Let the workers run."""
        NUMBER.pack_into(self._shared, LIMIT, ALL)

    def close(self, after: int = STEPS) -> None:
        """Let the workers make some more steps, and hold them then."""
        NUMBER.pack_into(self._shared, LIMIT, self.steps + after)

    def pass_time(self, seconds: float) -> None:
        """Set the clocks of the workers forward."""
        self._ahead += seconds
        SECONDS.pack_into(self._shared, AHEAD, self._ahead)


@contextmanager
def closed(gate: Gate, after: int = STEPS) -> Iterator[Gate]:
    """Close a gate for the length of a block."""
    gate.close(after)
    try:
        yield gate
    finally:
        gate.open()
