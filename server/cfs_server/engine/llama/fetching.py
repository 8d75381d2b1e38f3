"""Turns that wait until state of theirs is read from disk, while others compute."""

from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation

TRIES = 3
"""So often a turn waits: where memory is too small for what it needs, it is computed again."""


class Fetching:
    """Knows who waits, and how often he has."""

    def __init__(self, residency: Residency) -> None:
        self.turns: set[Generation] = set()
        self._residency = residency
        self._tries: dict[Generation, int] = {}

    def must_wait(self, turn: Generation) -> bool:
        """Whether a turn had better wait for the disk."""
        if turn not in self.turns and self._tries.get(turn, 0) >= TRIES:
            return False
        if not self._residency.fetch(turn.owner, turn.log):
            self.turns.discard(turn)
            return False
        if turn not in self.turns:
            self.turns.add(turn)
            self._tries[turn] = self._tries.get(turn, 0) + 1
        return True

    def gone(self, turn: Generation) -> None:
        """Forget a turn that is over, or does not want to come in now."""
        self.turns.discard(turn)
        self._tries.pop(turn, None)
