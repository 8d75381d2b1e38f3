"""The turns that must be over by some time, whatever they do until then: wait, compute, or pause."""

import math
import time
from bisect import bisect_left, insort

from cfs_server.engine.llama.sequences import Generation


class Deadlines:
    """Holds each turn that has a deadline from its arrival to its end, the next to be over first."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, int, Generation]] = []

    def add(self, turn: Generation) -> None:
        """Take in a turn."""
        if turn.ends_at < math.inf:
            insort(self._turns, (turn.ends_at, id(turn), turn))

    def remove(self, turn: Generation) -> None:
        """Let go of a turn that is over."""
        place = bisect_left(self._turns, (turn.ends_at, id(turn)))
        if place < len(self._turns) and self._turns[place][2] is turn:
            del self._turns[place]

    def late(self) -> list[Generation]:
        """List the turns whose time is over."""
        return [turn for _, _, turn in self._turns[: bisect_left(self._turns, (time.monotonic(),))]]

    @property
    def seconds_left(self) -> float | None:
        """Until the next turn is late; None when there is no deadline."""
        return max(0.0, self._turns[0][0] - time.monotonic()) if self._turns else None

    def check_integrity(self, turns: set[Generation]) -> list[str]:
        """Compare with the turns that there are; every line is a violation."""
        known = [turn for _, _, turn in self._turns]
        wanted = {turn for turn in turns if turn.ends_at < math.inf}
        return [] if set(known) == wanted and len(known) == len(wanted) else ["deadlines and turns do not agree"]
