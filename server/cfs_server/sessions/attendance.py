"""Whether an agent is attached to a session: it waits for a turn, or has called a moment ago (S10)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

AGENT_SECONDS = 5.0
"""How long an agent counts as attached between two of its calls."""


class Attendance:
    """The calls of the agent of one session."""

    __slots__ = ("_at", "_waiting", "recalled")

    def __init__(self) -> None:
        self._waiting, self._at = 0, -inf
        self.recalled = False
        """Whether files of the agent's workspace were rewound or merged since it last asked for a turn."""

    @property
    def attached(self) -> bool:
        """Whether an agent waits, or has called a moment ago."""
        return self._waiting > 0 or time.monotonic() - self._at < AGENT_SECONDS

    def called(self) -> None:
        """Note a call of the agent."""
        self._at = time.monotonic()

    def lost(self) -> None:
        """Note that the agent does not call any more."""
        self._at = -inf

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count an agent that waits for a turn during a block; one that disconnects is detached."""
        self._waiting += 1
        self.lost()
        try:
            yield
            self.called()
        finally:
            self._waiting -= 1
