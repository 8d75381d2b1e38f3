"""Nobody computes what somebody else is computing: a turn waits while its prefix is on the way."""

from collections.abc import Iterable

import numpy as np

from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation

WORTH_WAITING = 32
"""Tokens that must be saved; a few at the beginning of every chat are not worth a step of waiting."""


def must_wait(turn: Generation, running: Iterable[Generation], residency: Residency) -> bool:
    """Whether a turn had better wait; when its prefix is there, it is put where the turn will find it."""
    if turn.awaited is not None:
        other, length = turn.awaited
        if other.seat is not None and other.computed < length:
            return True
        turn.awaited = None
    if not residency.partial:
        return False
    known = residency.known(turn.owner, turn.log)
    best: Generation | None = None
    for other in running:
        common = _common(turn, other) if other.owner == turn.owner else 0
        if common >= known + WORTH_WAITING:
            best, known = other, common
    if best is None:
        return False
    if best.computed < known:
        turn.awaited = best, known
        return True
    residency.commit(best.place, best.log)
    return False


def _common(turn: Generation, other: Generation) -> int:
    """Length of the common beginning of two prompts, all but the last token at most."""
    length = min(len(turn.log) - 1, len(other.log))
    different = np.flatnonzero(np.array(turn.log[:length]) != np.array(other.log[:length]))
    return int(different[0]) if len(different) else length
