"""Turns that are put aside in the middle: which may be, what it costs them, and when they may come back.

A turn whose state is lost meanwhile computes it again. That must not happen again and again, so a turn that cannot be
kept is not put aside for the sake of others' shares, and one that lost its state comes back only when it can stay. So
no token is evaluated more than twice.
"""

from collections.abc import Collection
from itertools import chain

from cfs_server.engine.llama.lobby import Lobby
from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation

HEADROOM = 64
"""Cells that must be free for each running turn before another is admitted, or turns would go in and out."""


class Parking:
    """Looks ahead before turns leave and before they come back, and counts what they lost.

    It is given the scheduler's own list of the turns that run.
    """

    def __init__(self, residency: Residency, lobby: Lobby, running: Collection[Generation]) -> None:
        self.recomputed_tokens = 0
        self._residency = residency
        self._running = running
        self._lobby = lobby

    def can_keep(self, turn: Generation) -> bool:
        """Whether a turn that gives way now finds its state again: in memory, or as the pool has room for everybody."""
        if turn.losses:
            return False
        state_bytes = self._residency.pool.state_bytes
        others = chain(self._lobby.waiting, self._lobby.paused)
        aside = state_bytes(turn.computed) + sum(state_bytes(other.reached) for other in others if other.reached)
        return aside <= self._residency.memory.limit or self._everybody_fits()

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

    def _everybody_fits(self) -> bool:
        """Whether the pool holds all turns that there are to their ends."""
        left = self._residency.pool.cells
        for turn in chain(self._running, self._lobby.waiting, self._lobby.paused):
            left -= len(turn.log) + turn.left
            if left < 0:
                return False
        return True
