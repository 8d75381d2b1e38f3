"""Turns that are put aside in the middle: which may be, what it costs them, and when they may come back.

A turn whose state is lost meanwhile computes it again. That must not happen again and again, so a turn that cannot be
kept is not put aside for the sake of others' shares, and one that lost its state comes back only when it can stay. So
no token is evaluated more than twice.
"""

from collections.abc import Collection

from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation

HEADROOM = 64
"""Cells that must be free for each running turn before another is admitted, or turns would go in and out."""


class Parking:
    """Looks ahead before turns leave and before they come back, and counts what they lost.

    It is given the scheduler's own lists of the turns that run and of those that wait.
    """

    def __init__(self, residency: Residency, running: Collection[Generation], waiting: Collection[Generation]) -> None:
        self.recomputed_tokens = 0
        self._residency = residency
        self._running = running
        self._waiting = waiting

    def can_keep(self, turn: Generation) -> bool:
        """Whether a turn that gives way now finds its state again: in memory, or as the pool has room for everybody."""
        aside = self._bytes(turn.computed) + sum(self._bytes(other.reached) for other in self._waiting)
        everybody = sum(len(other.log) + other.left for other in (*self._running, *self._waiting))
        return not turn.losses and (aside <= self._residency.memory.limit or everybody <= self._residency.pool.cells)

    def spare(self, turn: Generation) -> int:
        """Cells that must be free beside a turn's log before it comes in: for a while, or for good after a loss."""
        if turn.losses or any(other.losses for other in self._running):
            return turn.left + sum(other.pending + other.left for other in self._running)
        return sum(other.pending for other in self._running) + HEADROOM * (len(self._running) + 1)

    def leaves(self, turn: Generation) -> None:
        """Note how far a turn has come that is put aside."""
        turn.reached = turn.computed

    def came_in(self, turn: Generation) -> None:
        """Count what a turn that was put aside has lost."""
        lost = max(0, turn.reached - turn.computed)
        self.recomputed_tokens += lost
        turn.losses += lost > 0
        turn.reached = 0

    def _bytes(self, tokens: int) -> int:
        return self._residency.pool.state_bytes(tokens) if tokens else 0
