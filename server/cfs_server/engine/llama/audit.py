"""Compares what the scheduler's parts believe of the same turns; every line is a violation."""

import time
from collections.abc import Iterator, Sequence

from cfs_server.engine.llama.deadlines import Deadlines
from cfs_server.engine.llama.lobby import Lobby
from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation
from cfs_server.engine.llama.solo import Solo

IDLE_SECONDS = 10.0
"""An idle engine looks after its books, but not more often: with thousands of sessions that takes milliseconds."""


class Audit:
    """Looks at the parts themselves; `running` is the scheduler's own list."""

    def __init__(
        self, residency: Residency, lobby: Lobby, deadlines: Deadlines, running: Sequence[Generation], solo: Solo
    ) -> None:
        self._solo = solo
        self._residency = residency
        self._lobby = lobby
        self._deadlines = deadlines
        self._running = running
        self._next = 0.0

    def when_idle(self) -> list[str]:
        """Check, if the last time is long enough ago."""
        if time.monotonic() < self._next:
            return []
        problems = self.violations()
        self._next = time.monotonic() + IDLE_SECONDS
        return problems

    def violations(self) -> list[str]:
        """Compare the turns with their seats, their accounts and their deadlines."""
        aside = [*self._lobby.waiting, *self._lobby.paused]
        computed = [*self._running, *self._solo.turns]
        turns = [*computed, *aside]
        problems = self._residency.check_integrity()
        problems += self._lobby.check_integrity([*computed, *self._lobby.waiting])
        problems += self._deadlines.check_integrity(set(turns))
        if len(set(turns)) != len(turns):
            problems.append("a turn is listed twice")
        problems += [f"{turn.id} runs without a seat" for turn in self._running if turn.seat is None]
        problems += [f"{turn.id} waits in a seat" for turn in [*aside, *self._solo.turns] if turn.seat is not None]
        return [*problems, *self._misplaced(turns)]

    def _misplaced(self, turns: Sequence[Generation]) -> Iterator[str]:
        seated = [turn.seat for turn in turns if turn.seat is not None]
        slots = self._residency.pool.slots.values()
        if {seat.slot.id for seat in seated} != {slot.id for slot in slots if slot.running}:
            yield "sequences that run and unfinished turns do not agree"
        for seat in seated:
            if seat.node is not None and seat.slot.own != seat.length - seat.shared:
                yield f"sequence {seat.slot.id} has {seat.slot.own} cells of its own"
