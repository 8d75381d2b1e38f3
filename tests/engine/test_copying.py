"""Large state is copied to memory in pieces, between steps; whatever happens meanwhile, what is kept is right."""

import random
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from cfs_server.engine.contract.protocol import Forget, WorkerOptions
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from tests.engine.test_prefix_cache import ROUNDING, words
from tests.engine.test_prefix_cache import CacheHarness as Turns
from tests.engine.test_scheduler import SchedulerHarness as Steps


@pytest.fixture(params=["tiny", "windowed"])
def harness(request: pytest.FixtureRequest) -> Turns:
    """Room for 512 tokens; state of more than about ten tokens is large."""
    made = Turns(request.getfixturevalue(request.param))
    made.cache.copying.piece_bytes = made.cache.pool.state_bytes(10)
    return made


def finish(harness: Turns) -> int:
    """Copy all that is due; returns in how many pieces."""
    count = 0
    while harness.cache.copying:
        harness.cache.copy_some()
        assert harness.cache.check_integrity() == []
        count += 1
    return count


def to_memory(harness: Turns) -> None:
    """Take all off the device."""
    while harness.cache.evict_one():
        assert harness.cache.check_integrity() == []


def test_state_in_pieces_is_the_computed_state(harness: Turns) -> None:
    """Nothing of it is evaluated again, and the logits are those of before."""
    whole = words((1, 90))
    fresh = harness.turn("s", whole)
    assert harness.cache.memory.used == 0
    assert finish(harness) >= 9
    used = harness.cache.memory.used
    assert used > 0
    to_memory(harness)
    assert harness.cache.memory.used == used, "it was copied before, so leaving the device copies nothing"
    before = harness.evaluated
    assert np.allclose(harness.turn("s", whole), fresh, atol=ROUNDING)
    assert harness.evaluated == before + 1


def test_what_leaves_the_device_before_it_is_copied_is_copied_at_once(harness: Turns) -> None:
    """Nothing is lost, and nothing is left to do."""
    whole = words((1, 90))
    harness.turn("s", whole)
    for _ in range(3):
        harness.cache.copy_some()
    to_memory(harness)
    harness.cache.copy_some()
    assert not harness.cache.copying
    before = harness.evaluated
    harness.turn("s", whole)
    assert harness.evaluated == before + 1


def test_random_lives_while_state_is_copied(harness: Turns) -> None:
    """Forks that cut what is being copied, deletions, evictions, other turns: the books and the logits are right."""
    dice = random.Random(7)
    plain = Turns(Path(harness.model.path))
    for _ in range(10 * settings().max_examples):
        key, action = f"s{dice.randrange(6)}", dice.random()
        if action < 0.4:
            tokens = words((dice.randrange(2), dice.randrange(1, 50)), (dice.randrange(3), dice.randrange(1, 30)))
            logits = harness.turn(key, tokens)
            if dice.random() < 0.2:
                allocation = plain.enter(tokens)
                assert np.allclose(logits, plain.compute(allocation, tokens), atol=ROUNDING)
                plain.cache.release(allocation, array("i"), None)
        elif action < 0.8:
            harness.cache.copy_some()
        elif action < 0.9:
            harness.cache.evict_one()
        else:
            harness.cache.forget(key)
        assert harness.cache.check_integrity() == []
    for number in range(6):
        harness.cache.forget(f"s{number}")
    finish(harness)
    assert harness.empty()


def test_others_take_their_steps_between_two_pieces(tiny: Path) -> None:
    """Each step copies one piece; an idle engine copies the rest before it rests, and a deleted session's no more."""
    options = WorkerOptions(parallel=4, pool_tokens=512, threads=1, idle_seconds=1e9)
    harness = Steps(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))
    cache = harness.scheduler._cache
    cache.copying.piece_bytes = cache.pool.state_bytes(10)
    harness.put("speaks", prompt=5, tokens=60)
    harness.put("large", prompt=100, tokens=5, first=300)
    harness.run("large")
    said = len(harness.text("speaks"))
    sizes = []
    while cache.copying:
        harness.scheduler.take_work()
        harness.scheduler.step()
        assert harness.scheduler.check_integrity() == []
        sizes.append(cache.memory.used)
    assert sizes[0] == 0
    assert sizes[-1] > 0
    assert len(sizes) >= 10
    assert len(harness.text("speaks")) > said, "it spoke meanwhile"
    harness.run("speaks")
    while cache.copying:
        harness.scheduler.take_work()
        harness.scheduler.step()
    harness.put("gone", prompt=100, tokens=5, first=301)
    harness.run("gone")
    assert cache.copying
    harness.scheduler.inbox.put(Forget("key-gone"))
    used = cache.memory.used
    while cache.copying:
        harness.scheduler.take_work()
        harness.scheduler.step()
    assert cache.memory.used <= used
