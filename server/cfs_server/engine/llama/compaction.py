"""Moves what runs to the beginning of the pool when holes below it cost time.

The library attends over all cells up to the highest that is used, free ones too, and has no call that moves cells. So
running turns are saved, taken off and seated again: copying a cell costs as much as looking at it some dozen times.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.seat import Seat
from cfs_server.engine.llama.sequences import Generation

COPY = 40
"""Looks at a cell, one for each token of a stream, that cost as much as saving and restoring it (measured: 5 to 42)."""
AHEAD = 100
"""Tokens of a reply that are counted on; more may come, or none."""
LEAST = 1024
"""Fewer holes are not worth the trouble."""
MOST_BYTES = 256 << 20
"""So much is copied at most, or streams would stand still for too long."""


@dataclass(frozen=True, slots=True)
class Place:
    """A running turn: its seat, its tokens, its session."""

    seat: Seat
    log: "array[int]"
    key: str


def reseat(residency: Residency, places: Sequence[Place]) -> list[Seat | None]:
    """Empty the pool and seat these turns again where it begins; `None` for one that finds no room any more.

    All turns that run must be given. Nothing is lost: memory may hold more than its limit meanwhile.
    """
    limit, residency.memory.limit = residency.memory.limit, 1 << 62
    for place in places:
        residency.leave(place.seat, place.log, place.key)
    while residency.evict_one():
        pass
    seats = [residency.enter(place.seat.owner, place.log, 0, alone=False) for place in places]
    residency.memory.limit = limit
    residency.trim_memory()
    return seats


class Compaction:
    """Knows about how far the pool was filled, and judges whether moving pays.

    It is given the scheduler's own lists of the turns that run and of those that wait.
    """

    def __init__(self, residency: Residency, running: list[Generation], waiting: deque[Generation]) -> None:
        self.count = 0
        self._residency = residency
        self._running = running
        self._waiting = waiting
        self._peak = 0

    def look(self) -> None:
        """Call before each step: compact if that pays."""
        used = self._residency.pool.cells_used
        self._peak = max(self._peak, used) if used else 0  # an empty pool is filled from its beginning
        if self._pays(used, self._peak - used) and self._nothing_is_lost():
            self._compact()
            self._peak = self._residency.pool.cells_used

    def _pays(self, used: int, holes: int) -> bool:
        """Whether most of what a step looks at is holes, and the tokens to come are worth the copying."""
        ahead = sum(min(turn.left, AHEAD) for turn in self._running)
        copied = self._residency.pool.state_bytes(used)
        return holes >= max(used, LEAST) and holes * ahead >= COPY * used and copied <= MOST_BYTES

    def _nothing_is_lost(self) -> bool:
        """Whether memory takes what rests on the device and is nowhere else."""
        pool, memory = self._residency.pool, self._residency.memory
        unsaved = sum(len(node.tokens) for node in pool.nodes if not (node.memory or node.pins))
        return not unsaved or memory.used + pool.state_bytes(unsaved) <= memory.limit

    def _compact(self) -> None:
        self.count += 1
        turns = list(self._running)
        seats = reseat(self._residency, [Place(turn.place, turn.log, turn.cache_key) for turn in turns])
        for turn, seat in zip(turns, seats, strict=True):
            turn.reached, turn.seat = (0 if seat else turn.computed), seat
            if seat is None:
                self._running.remove(turn)
                self._waiting.appendleft(turn)
