"""Large state is copied to memory in pieces, between steps; whatever happens meanwhile, what is kept is right."""

import random
from array import array
from pathlib import Path

import numpy as np
import pytest

from cfs_server.engine.llama.model import NativeLog, load
from cfs_server.engine.protocol import Forget, Options
from tests.engine.test_residency import ROUNDING, words
from tests.engine.test_residency import Desk as Turns
from tests.engine.test_scheduler import Desk as Steps


@pytest.fixture(params=["tiny", "windowed"])
def desk(request: pytest.FixtureRequest) -> Turns:
    """Room for 512 tokens; state of more than about ten tokens is large."""
    made = Turns(request.getfixturevalue(request.param))
    made.residency.copying.piece_bytes = made.residency.pool.state_bytes(10)
    return made


def finish(desk: Turns) -> int:
    """Copy all that is due; returns in how many pieces."""
    count = 0
    while desk.residency.copying:
        desk.residency.copy_some()
        assert desk.residency.check_integrity() == []
        count += 1
    return count


def to_memory(desk: Turns) -> None:
    """Take all off the device."""
    while desk.residency.evict_one():
        assert desk.residency.check_integrity() == []


def test_state_in_pieces_is_the_computed_state(desk: Turns) -> None:
    """Nothing of it is evaluated again, and the logits are those of before."""
    whole = words((1, 90))
    fresh = desk.turn("s", whole)
    assert desk.residency.memory.used == 0
    assert finish(desk) >= 9
    used = desk.residency.memory.used
    assert used > 0
    to_memory(desk)
    assert desk.residency.memory.used == used, "it was copied before, so leaving the device copies nothing"
    before = desk.evaluated
    assert np.allclose(desk.turn("s", whole), fresh, atol=ROUNDING)
    assert desk.evaluated == before + 1


def test_what_leaves_the_device_before_it_is_copied_is_copied_at_once(desk: Turns) -> None:
    """Nothing is lost, and nothing is left to do."""
    whole = words((1, 90))
    desk.turn("s", whole)
    for _ in range(3):
        desk.residency.copy_some()
    to_memory(desk)
    desk.residency.copy_some()
    assert not desk.residency.copying
    before = desk.evaluated
    desk.turn("s", whole)
    assert desk.evaluated == before + 1


def test_random_lives_while_state_is_copied(desk: Turns) -> None:
    """Forks that cut what is being copied, deletions, evictions, other turns: the books and the logits are right."""
    dice = random.Random(7)
    plain = Turns(Path(desk.model.path))
    for _ in range(300):
        key, action = f"s{dice.randrange(6)}", dice.random()
        if action < 0.4:
            tokens = words((dice.randrange(2), dice.randrange(1, 50)), (dice.randrange(3), dice.randrange(1, 30)))
            logits = desk.turn(key, tokens)
            if dice.random() < 0.2:
                seat = plain.enter(tokens)
                assert np.allclose(logits, plain.compute(seat, tokens), atol=ROUNDING)
                plain.residency.leave(seat, array("i"), None)
        elif action < 0.8:
            desk.residency.copy_some()
        elif action < 0.9:
            desk.residency.evict_one()
        else:
            desk.residency.forget(key)
        assert desk.residency.check_integrity() == []
    for number in range(6):
        desk.residency.forget(f"s{number}")
    finish(desk)
    assert desk.empty()


def test_others_take_their_steps_between_two_pieces(tiny: Path) -> None:
    """Each step copies one piece; an idle engine copies the rest before it rests, and a deleted session's no more."""
    options = Options(parallel=4, pool_tokens=512, threads=1, idle_seconds=1e9)
    desk = Steps(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))
    residency = desk.scheduler._residency
    residency.copying.piece_bytes = residency.pool.state_bytes(10)
    desk.put("speaks", prompt=5, tokens=60)
    desk.put("large", prompt=100, tokens=5, first=300)
    desk.run("large")
    said = len(desk.text("speaks"))
    sizes = []
    while residency.copying:
        desk.scheduler.take_work()
        desk.scheduler.step()
        assert desk.scheduler.check_integrity() == []
        sizes.append(residency.memory.used)
    assert sizes[0] == 0
    assert sizes[-1] > 0
    assert len(sizes) >= 10
    assert len(desk.text("speaks")) > said, "it spoke meanwhile"
    desk.run("speaks")
    while residency.copying:
        desk.scheduler.take_work()
        desk.scheduler.step()
    desk.put("gone", prompt=100, tokens=5, first=301)
    desk.run("gone")
    assert residency.copying
    desk.scheduler.inbox.put(Forget("key-gone"))
    used = residency.memory.used
    while residency.copying:
        desk.scheduler.take_work()
        desk.scheduler.step()
    assert residency.memory.used <= used
