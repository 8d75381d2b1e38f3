"""The engine's own overhead: the part of a step in which the model computes nothing."""

import time

_RATE_OF_CLOCK = 0.05


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
        own = time.perf_counter() - self._began - self._decoded - self._sampled
        self.own = _mean(self.own, own)
        self.sampling = _mean(self.sampling, self._sampled)


def _mean(before: float, newest: float) -> float:
    return before + _RATE_OF_CLOCK * (newest - before) if before else newest
