"""What is kept changes no reply: greedy tokens are the same wherever the state of what came before has been.

One token is computed at a time, so that all shapes are the same; logits may differ by the order of additions.
"""

from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cfs_server.engine.kvcache.device import Allocation
from tests.engine.test_prefix_cache import ARCHITECTURES, ROUNDING, CacheHarness, Logits, words

PROMPT, REPLY = words((1, 90), (2, 20)), 60
"""The prompt is longer than the window of the windowed model."""


def speak(harness: CacheHarness, allocation: Allocation, log: list[int], count: int) -> Logits:
    """Compute what is missing and append greedy tokens; returns the logits after each."""
    logits = []
    for _ in range(count):
        logits.append(harness.compute(allocation, log))
        log.append(int(logits[-1].argmax()))
    return np.array(logits)


def reply(harness: CacheHarness, log: list[int], key: str = "ours", count: int = REPLY) -> tuple[list[int], Logits]:
    """Run a whole turn behind a prompt; returns prompt and reply, and the logits of the reply."""
    log = list(log)
    allocation = harness.enter(log)
    logits = speak(harness, allocation, log, count)
    harness.cache.release(allocation, array("i", log[: allocation.length]), key)
    assert harness.cache.check_integrity() == []
    return log, logits


def to_memory(harness: CacheHarness) -> None:
    """Empty the device."""
    while harness.cache.evict_one():
        pass
    assert harness.cache.pool.cells_used == 0


def on_the_device(harness: CacheHarness) -> None:
    """The prompt was read by the same session."""
    harness.turn("ours", PROMPT)


def in_memory(harness: CacheHarness) -> None:
    """And left the device."""
    harness.turn("ours", PROMPT)
    to_memory(harness)


def forked(harness: CacheHarness) -> None:
    """Another session has the first 90 tokens, and went on otherwise."""
    harness.turn("other", words((1, 90), (3, 40)))


def forked_in_memory(harness: CacheHarness) -> None:
    """The same, and all of that has left the device."""
    forked(harness)
    to_memory(harness)


def between_others(harness: CacheHarness) -> None:
    """The session's state lies between holes that others left."""
    harness.turn("before", words((7, 70)))
    harness.turn("ours", PROMPT)
    harness.turn("behind", words((8, 70)))
    harness.cache.forget("before")


def overrun(harness: CacheHarness) -> None:
    """Others have filled the pool again and again."""
    harness.turn("ours", PROMPT)
    for number in range(8):
        harness.turn(f"other {number}", words((10 + number, 150)))


KNOWN: dict[Callable[[CacheHarness], None], int] = {
    on_the_device: len(PROMPT) - 1,
    in_memory: len(PROMPT) - 1,
    forked: 90,
    forked_in_memory: 90,
    between_others: len(PROMPT) - 1,
    overrun: len(PROMPT) - 1,
}
"""What was there before, and how much of the prompt it spares a model whose state has parts."""


@pytest.fixture(params=ARCHITECTURES)
def make(request: pytest.FixtureRequest) -> Callable[[], CacheHarness]:
    """Make harnesses for a model of each architecture."""
    kind: str = request.param
    path: Path = request.getfixturevalue(kind.split(",")[0])
    return lambda: CacheHarness(path, **ARCHITECTURES[kind])


@pytest.mark.parametrize("before", KNOWN, ids=lambda before: before.__name__)
def test_a_reply_is_that_of_a_session_alone(
    make: Callable[[], CacheHarness], before: Callable[[CacheHarness], None]
) -> None:
    """Whether its prompt was known or not, where its state has been, and who else has been there."""
    alone, logits = reply(make(), PROMPT)
    harness = make()
    before(harness)
    evaluated = harness.evaluated
    again, others = reply(harness, PROMPT)
    assert again == alone
    assert np.allclose(others, logits, atol=ROUNDING)
    known = KNOWN[before] if harness.model.context.partial else 0
    assert harness.evaluated - evaluated == len(PROMPT) - known + REPLY - 1


def test_a_second_turn_is_that_of_a_history_that_is_read_at_once(make: Callable[[], CacheHarness]) -> None:
    """The first reply's state is used as it is, from memory too; only the new message is evaluated."""
    harness, fresh = make(), make()
    history, _ = reply(harness, PROMPT)
    to_memory(harness)
    evaluated = harness.evaluated
    history += words((5, 30))
    second, logits = reply(harness, history, count=20)
    assert harness.evaluated - evaluated == 30 + 20
    expected, others = reply(fresh, history, count=20)
    assert second == expected
    assert np.allclose(logits, others, atol=ROUNDING)


@pytest.mark.parametrize("evict", [False, True], ids=["resident", "to memory"])
def test_a_preempted_turn_goes_on_as_if_it_had_not_been(make: Callable[[], CacheHarness], evict: bool) -> None:
    """Every twenty tokens, while others use the pool; nothing is evaluated twice."""
    alone, logits = reply(make(), PROMPT)
    harness, log, parts = make(), list(PROMPT), []
    for number in range(3):
        allocation = harness.enter(log)
        parts.append(speak(harness, allocation, log, 20))
        harness.cache.release(allocation, array("i", log[: allocation.length]), "ours")
        evaluated = harness.evaluated
        harness.turn("other", words((20 + number, 100)))
        harness.evaluated = evaluated
        if evict:
            to_memory(harness)
    assert log == alone
    assert np.allclose(np.concatenate(parts), logits, atol=ROUNDING)
    assert harness.evaluated == len(PROMPT) + REPLY - 1
