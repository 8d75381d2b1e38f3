"""Compares what the scheduler's parts believe of the same turns; every line is a violation."""

from collections.abc import Sequence

from cfs_server.engine.llama.lobby import Lobby
from cfs_server.engine.llama.residency import Residency
from cfs_server.engine.llama.sequences import Generation


def violations(residency: Residency, lobby: Lobby, running: Sequence[Generation]) -> list[str]:
    """Compare the turns with the seats that they have, and the accounts that they draw on."""
    aside = [*lobby.waiting, *lobby.paused]
    turns = [*running, *aside]
    problems = residency.check_integrity() + lobby.check_integrity([*running, *lobby.waiting])
    if len({id(turn) for turn in turns}) != len(turns):
        problems.append("a turn is listed twice")
    seated = [turn.seat for turn in turns if turn.seat is not None]
    slots = residency.pool.slots.values()
    if {seat.slot.id for seat in seated} != {slot.id for slot in slots if slot.running}:
        problems.append("sequences that run and unfinished turns do not agree")
    problems += [f"{turn.id} runs without a seat" for turn in running if turn.seat is None]
    problems += [f"{turn.id} waits in a seat" for turn in aside if turn.seat is not None]
    for seat in seated:
        if seat.node is not None and seat.slot.own != seat.length - seat.shared:
            problems.append(f"sequence {seat.slot.id} has {seat.slot.own} cells of its own")
    return problems
