"""What is kept changes no reply: greedy tokens are the same wherever the state of what came before has been.

One token is computed at a time, so that all shapes are the same; logits may differ by the order of additions.
"""

from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cfs_server.engine.kvcache.device import Seat
from tests.engine.test_residency import FAMILIES, ROUNDING, Desk, Logits, words

PROMPT, REPLY = words((1, 90), (2, 20)), 60
"""The prompt is longer than the window of the windowed model."""


def speak(desk: Desk, seat: Seat, log: list[int], count: int) -> Logits:
    """Compute what is missing and append greedy tokens; returns the logits after each."""
    logits = []
    for _ in range(count):
        logits.append(desk.compute(seat, log))
        log.append(int(logits[-1].argmax()))
    return np.array(logits)


def reply(desk: Desk, log: list[int], key: str = "ours", count: int = REPLY) -> tuple[list[int], Logits]:
    """Run a whole turn behind a prompt; returns prompt and reply, and the logits of the reply."""
    log = list(log)
    seat = desk.enter(log)
    logits = speak(desk, seat, log, count)
    desk.residency.leave(seat, array("i", log[: seat.length]), key)
    assert desk.residency.check_integrity() == []
    return log, logits


def to_memory(desk: Desk) -> None:
    """Empty the device."""
    while desk.residency.evict_one():
        pass
    assert desk.residency.pool.cells_used == 0


def on_the_device(desk: Desk) -> None:
    """The prompt was read by the same session."""
    desk.turn("ours", PROMPT)


def in_memory(desk: Desk) -> None:
    """And left the device."""
    desk.turn("ours", PROMPT)
    to_memory(desk)


def forked(desk: Desk) -> None:
    """Another session has the first 90 tokens, and went on otherwise."""
    desk.turn("other", words((1, 90), (3, 40)))


def forked_in_memory(desk: Desk) -> None:
    """The same, and all of that has left the device."""
    forked(desk)
    to_memory(desk)


def between_others(desk: Desk) -> None:
    """The session's state lies between holes that others left."""
    desk.turn("before", words((7, 70)))
    desk.turn("ours", PROMPT)
    desk.turn("behind", words((8, 70)))
    desk.residency.forget("before")


def overrun(desk: Desk) -> None:
    """Others have filled the pool again and again."""
    desk.turn("ours", PROMPT)
    for number in range(8):
        desk.turn(f"other {number}", words((10 + number, 150)))


KNOWN: dict[Callable[[Desk], None], int] = {
    on_the_device: len(PROMPT) - 1,
    in_memory: len(PROMPT) - 1,
    forked: 90,
    forked_in_memory: 90,
    between_others: len(PROMPT) - 1,
    overrun: len(PROMPT) - 1,
}
"""What was there before, and how much of the prompt it spares a model whose state has parts."""


@pytest.fixture(params=FAMILIES)
def make(request: pytest.FixtureRequest) -> Callable[[], Desk]:
    """Make desks for a model of each family."""
    kind: str = request.param
    path: Path = request.getfixturevalue(kind.split(",")[0])
    return lambda: Desk(path, **FAMILIES[kind])


@pytest.mark.parametrize("before", KNOWN, ids=lambda before: before.__name__)
def test_a_reply_is_that_of_a_session_alone(make: Callable[[], Desk], before: Callable[[Desk], None]) -> None:
    """Whether its prompt was known or not, where its state has been, and who else has been there."""
    alone, logits = reply(make(), PROMPT)
    desk = make()
    before(desk)
    evaluated = desk.evaluated
    again, others = reply(desk, PROMPT)
    assert again == alone
    assert np.allclose(others, logits, atol=ROUNDING)
    known = KNOWN[before] if desk.model.context.partial else 0
    assert desk.evaluated - evaluated == len(PROMPT) - known + REPLY - 1


def test_a_second_turn_is_that_of_a_history_that_is_read_at_once(make: Callable[[], Desk]) -> None:
    """The first reply's state is used as it is, from memory too; only the new message is evaluated."""
    desk, fresh = make(), make()
    history, _ = reply(desk, PROMPT)
    to_memory(desk)
    evaluated = desk.evaluated
    history += words((5, 30))
    second, logits = reply(desk, history, count=20)
    assert desk.evaluated - evaluated == 30 + 20
    expected, others = reply(fresh, history, count=20)
    assert second == expected
    assert np.allclose(logits, others, atol=ROUNDING)


@pytest.mark.parametrize("evict", [False, True], ids=["resident", "to memory"])
def test_a_turn_that_is_put_aside_goes_on_as_if_it_had_not_been(make: Callable[[], Desk], evict: bool) -> None:
    """Every twenty tokens, while others use the pool; nothing is evaluated twice."""
    alone, logits = reply(make(), PROMPT)
    desk, log, parts = make(), list(PROMPT), []
    for number in range(3):
        seat = desk.enter(log)
        parts.append(speak(desk, seat, log, 20))
        desk.residency.leave(seat, array("i", log[: seat.length]), "ours")
        evaluated = desk.evaluated
        desk.turn("other", words((20 + number, 100)))
        desk.evaluated = evaluated
        if evict:
            to_memory(desk)
    assert log == alone
    assert np.allclose(np.concatenate(parts), logits, atol=ROUNDING)
    assert desk.evaluated == len(PROMPT) + REPLY - 1
