"""The engine's own overhead, the part of a step in which the model computes nothing; and which steps are long."""

import time

from cfs_server.engine.contract.protocol import Computing

HANG_FACTOR = 10.0
"""A step may take this many times longer than predicted before it counts as hanging."""
FIRST_STEP_SECONDS = 120.0
"""Limit of the first step, of which nothing is predicted: it may read the whole model from the disk."""
LONG_SECONDS = 2.0
"""Steps that may take less are not announced: the supervisor tolerates a longer silence than this."""
_RATE_OF_CLOCK = 0.05


def announcement(seconds: float) -> Computing | None:
    """Announce a step that may take so long that the supervisor would kill this process; 0 is unknown."""
    may_take = seconds * HANG_FACTOR if seconds else FIRST_STEP_SECONDS
    return Computing(may_take) if may_take > LONG_SECONDS else None


class StepClock:
    """Exponential means of seconds a step: `own` is all time except the model's work and the sampling."""

    def __init__(self) -> None:
        self.own = 0.0
        self.sampling = 0.0
        self._began = self._decoded = self._sampled = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began, self._decoded, self._sampled = time.perf_counter(), 0.0, 0.0

    def decoded(self, seconds: float) -> None:
        """The model took so long."""
        self._decoded += seconds

    def sampled(self, seconds: float) -> None:
        """Choosing tokens took so long."""
        self._sampled += seconds

    def end(self) -> None:
        """A step is over; one in which nothing was computed does not count."""
        if not self._decoded:
            return
        own_seconds = time.perf_counter() - self._began - self._decoded - self._sampled
        self.own = _mean(self.own, own_seconds)
        self.sampling = _mean(self.sampling, self._sampled)


def _mean(before: float, newest: float) -> float:
    return before + _RATE_OF_CLOCK * (newest - before) if before else newest
