"""PrefixCache on the real library: state that was shared, split, saved or restored is the state that was computed."""

import random
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.kvcache.cache import PrefixCache
from cfs_server.engine.kvcache.device import Allocation
from cfs_server.engine.kvcache.disk import DiskTier
from cfs_server.engine.kvcache.snapshots import SnapshotCache
from cfs_server.engine.llama.ffi import DecodeResult, NativeLog, TokenBatch
from cfs_server.engine.llama.model import load

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "windowed": {},
    "windowed, not in full": {"pool_bytes": 1, "step_tokens": 64},
    "recurrent": {},
    "hybrid": {},
}
Logits = NDArray[np.float32]
ROUNDING = 5 * float(np.finfo(np.float16).eps)
"""How much the order of additions may change a logit: cells hold 16-bit numbers, the largest logits here are near 5.

How much it does depends on the width of the CPU's vectors: 2.4e-3 with 512 bits. Where there is attention, one wrong
token 30 places before changes a logit by 0.1 and more.
"""


class CacheHarness:
    """A context of its own with its cache; turns are computed one token a batch, so that shapes never differ."""

    def __init__(
        self, path: Path, cells: int = 512, memory: int = 1 << 20, disk: DiskTier | None = None, **more: Any
    ) -> None:
        options = WorkerOptions(**{"parallel": 4, "pool_tokens": cells, "threads": 1, "flash_attention": False} | more)
        self.model = load(str(path), options, NativeLog(lambda _level, _text: None), extra_buffers=True)
        cache_type = PrefixCache if self.model.context.partial else SnapshotCache
        self.cache = cache_type(self.model.context, memory, 1e9, disk)
        self.batch = TokenBatch(8)
        self.evaluated = 0

    def enter(self, tokens: list[int], owner: str = "") -> Allocation:
        """Allocate a sequence to a turn that must find room."""
        allocation = self.cache.allocate(owner, array("i", tokens), 0, alone=False)
        assert allocation is not None
        return allocation

    def compute(self, allocation: Allocation, tokens: list[int]) -> Logits:
        """Compute what is missing and return the logits after the last token."""
        for place in range(allocation.length, len(tokens)):
            self.batch.clear()
            self.batch.add(allocation.handle.id, [tokens[place]], place, output=True)
            assert self.model.context.decode(self.batch) is DecodeResult.DONE
            self.cache.grow(allocation, 1)
            self.evaluated += 1
        return self.model.context.logits(0, self.model.vocabulary.size).copy()

    def turn(self, key: str, tokens: list[int], owner: str = "") -> Logits:
        """Run a whole turn."""
        allocation = self.enter(tokens, owner)
        logits = self.compute(allocation, tokens)
        self.cache.release(allocation, array("i", tokens), key)
        assert self.cache.check_integrity() == []
        return logits

    def empty(self) -> bool:
        """Whether nothing is kept anywhere."""
        pool, memory = self.cache.pool, self.cache.memory
        return not (pool.cells_used or pool.handles or memory.used or list(self.cache.tree))


def words(*parts: tuple[int, int]) -> list[int]:
    """Make tokens: `count` of them from a seed, for each part."""
    return [random.Random(seed * 1000 + place).randrange(400) for seed, count in parts for place in range(count)]


@pytest.fixture
def harness(tiny: Path) -> CacheHarness:
    """Room for 512 tokens."""
    return CacheHarness(tiny)


def test_restored_state_is_the_computed_state(harness: CacheHarness) -> None:
    """A run that went to memory and back gives the logits of before; nothing of it is evaluated again."""
    whole = words((1, 60))
    fresh = harness.turn("s", whole)
    while harness.cache.evict_one():
        pass
    assert harness.cache.pool.cells_used == 0
    assert harness.cache.check_integrity() == []
    before = harness.evaluated
    assert np.array_equal(harness.turn("s", whole), fresh)
    assert harness.evaluated == before + 1


@pytest.mark.parametrize("evict", [False, True], ids=["resident", "from memory"])
def test_a_split_run_is_used_from_its_middle(harness: CacheHarness, tiny: Path, evict: bool) -> None:
    """Two sessions that part at token 37 have the logits of sessions alone, whether the first is resident or not."""
    ours, theirs = words((1, 37), (2, 20)), words((1, 37), (3, 20))
    harness.turn("a", ours)
    while evict and harness.cache.evict_one():
        pass
    before = harness.evaluated
    shared = harness.turn("b", theirs)
    assert harness.evaluated == before + 20
    again = harness.turn("a", ours)
    other = CacheHarness(tiny)
    assert np.allclose(shared, other.turn("x", theirs), atol=ROUNDING)
    assert np.allclose(again, CacheHarness(tiny).turn("x", ours), atol=ROUNDING)


def test_a_split_run_comes_back_in_one_piece(harness: CacheHarness) -> None:
    """Both parts refer to one saved state, which fits into the pool once and not twice."""
    ours = words((1, 200), (2, 100))
    fresh = harness.turn("a", ours)
    harness.turn("b", words((1, 200), (3, 5)))
    while harness.cache.evict_one():
        pass
    before = harness.evaluated
    assert np.allclose(harness.turn("a", ours), fresh, atol=ROUNDING)
    assert harness.evaluated == before + 1


def test_the_end_of_a_run_comes_back_though_its_beginning_is_there(harness: CacheHarness) -> None:
    """It was saved with the beginning and is restored with it: a turn that is alone makes room for both."""
    ours = words((1, 300), (2, 100))
    fresh = harness.turn("a", ours)
    while harness.cache.evict_one():
        pass
    harness.turn("b", words((1, 300), (3, 5)))
    before = harness.evaluated
    allocation = harness.cache.allocate("", array("i", ours), 0, alone=True)
    assert allocation is not None
    assert allocation.length == len(ours) - 1
    assert np.allclose(harness.compute(allocation, ours), fresh, atol=ROUNDING)
    assert harness.evaluated == before + 1
    harness.cache.release(allocation, array("i", ours), "a")
    assert harness.cache.check_integrity() == []


def test_what_is_expected_soon_stays(harness: CacheHarness) -> None:
    """Between two sessions the one whose tool runs keeps its place, the one whose user thinks leaves."""
    for seed, key in enumerate(("thinks", "runs a tool", "said nothing")):
        harness.turn(key, words((seed + 1, 20)))
    harness.cache.expect("thinks", 60.0)
    harness.cache.expect("runs a tool", 5.0)
    harness.cache.expect("unknown", 5.0)
    assert harness.cache.evict_one()
    left = set().union(*(node.sessions for node in harness.cache.pool.nodes))
    assert left == {"runs a tool", "said nothing"}


def test_turns_side_by_side_share_what_is_committed(harness: CacheHarness) -> None:
    """A running turn's prompt serves others at once; cells are counted once, and the sequence goes back at the end."""
    first, second = words((1, 50), (2, 5)), words((1, 50), (3, 5))
    one = harness.enter(first)
    harness.compute(one, first)
    harness.cache.commit(one, array("i", first))
    two = harness.enter(second)
    assert two.length == 50
    harness.compute(two, second)
    assert harness.cache.pool.cells_used == 60
    assert harness.cache.check_integrity() == []
    harness.cache.release(one, None, "one")
    harness.cache.release(two, array("i", second), "two")
    assert harness.cache.check_integrity() == []
    assert harness.cache.pool.cells_used == 60


def test_two_turns_that_computed_the_same_keep_it_once(harness: CacheHarness) -> None:
    """The second to commit takes the first one's cells and frees its own."""
    tokens = words((1, 40))
    allocations = [harness.enter(tokens), harness.enter(tokens)]
    for allocation in allocations:
        harness.compute(allocation, tokens)
    assert harness.cache.pool.cells_used == 80
    for allocation in allocations:
        harness.cache.commit(allocation, array("i", tokens))
        assert harness.cache.check_integrity() == []
    assert harness.cache.pool.cells_used == 40
    for number, allocation in enumerate(allocations):
        harness.cache.release(allocation, None, f"s{number}")
    assert harness.cache.check_integrity() == []


def test_what_was_not_committed_is_gone(harness: CacheHarness) -> None:
    """A turn that failed leaves nothing."""
    allocation = harness.enter(words((1, 30)))
    harness.compute(allocation, words((1, 30)))
    harness.cache.release(allocation, None, None)
    assert harness.cache.check_integrity() == []
    assert harness.empty()


def test_an_aborted_step_is_as_if_it_had_not_been(harness: CacheHarness) -> None:
    """From another thread, in the middle of a batch; the same tokens computed again give the same logits."""
    tokens = words((1, 300))
    allocation = harness.enter(tokens)
    harness.compute(allocation, tokens[:20])
    batch, context = TokenBatch(512), harness.model.context
    batch.add(allocation.handle.id, tokens[20:], 20, output=True)
    outcomes = set()
    for _ in range(50):
        timer = threading.Timer(0.002, context.abort_flag.set)
        timer.start()
        outcomes.add(outcome := context.decode(batch))
        timer.join()
        harness.cache.undo([allocation])
        assert harness.cache.check_integrity() == []
        if outcome is DecodeResult.ABORTED:
            break
    assert DecodeResult.ABORTED in outcomes
    again = harness.compute(allocation, tokens)
    harness.cache.release(allocation, None, None)
    assert np.array_equal(harness.turn("fresh", tokens), again)


def test_no_room_changes_nothing(harness: CacheHarness) -> None:
    """Beside running turns that fill the pool no other is seated, and nothing is lost."""
    long = words((1, 500))
    allocation = harness.enter(long)
    harness.compute(allocation, long)
    assert harness.cache.allocate("", array("i", words((2, 100))), 0, alone=False) is None
    assert harness.cache.check_integrity() == []
    harness.cache.release(allocation, None, None)
    assert harness.empty()


def test_without_memory_what_leaves_the_device_is_gone(tiny: Path) -> None:
    """And nothing is copied."""
    harness = CacheHarness(tiny, memory=0)
    harness.turn("s", words((1, 40)))
    assert harness.cache.evict_one()
    assert harness.empty()


@dataclass
class Talk:
    """A session of the fuzz."""

    owner: str
    tokens: list[int] = field(default_factory=list)
    allocation: Allocation | None = None


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("operations", [150, pytest.param(6_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_random_lives_leave_nothing(request: pytest.FixtureRequest, kind: str, operations: int) -> None:
    """Enter, compute, commit, leave, fork, edit, evict, forget at random: the books stay right, and end at zero."""
    dice = random.Random(operations)
    path, more = request.getfixturevalue(kind.split(",")[0]), ARCHITECTURES[kind]
    harness, plain = CacheHarness(path, cells=384, memory=100_000, **more), CacheHarness(path, **more)
    talks: dict[str, Talk] = {}

    def finish(key: str, talk: Talk, *, well: bool) -> None:
        assert talk.allocation is not None
        harness.cache.release(talk.allocation, array("i", talk.tokens) if well else None, key if well else None)
        talk.allocation = None

    for _ in range(operations):
        key = f"s{dice.randrange(10)}"
        talk = talks.setdefault(key, Talk(dice.choice("ab")))
        action = dice.random()
        if talk.allocation is not None:
            if action < 0.5:
                harness.cache.commit(talk.allocation, array("i", talk.tokens))
            else:
                finish(key, talk, well=action < 0.9)
        elif action < 0.5:
            if action < 0.1:
                talk.tokens = talk.tokens[: dice.randrange(len(talk.tokens) + 1)]
            elif action < 0.2:
                talk.tokens = list(dice.choice(list(talks.values())).tokens)
            talk.tokens = [*talk.tokens, *words((dice.randrange(4), dice.randrange(1, 30)))][:90]
            talk.allocation = harness.cache.allocate(talk.owner, array("i", talk.tokens), 0, alone=False)
            if talk.allocation is not None:
                logits = harness.compute(talk.allocation, talk.tokens)
                if dice.random() < 0.1:
                    allocation = plain.enter(talk.tokens)
                    assert np.allclose(logits, plain.compute(allocation, talk.tokens), atol=ROUNDING)
                    plain.cache.release(allocation, None, None)
        elif action < 0.8:
            harness.cache.evict_one()
        else:
            harness.cache.forget(key)
            del talks[key]
        assert harness.cache.check_integrity() == []
    for key, talk in talks.items():
        if talk.allocation is not None:
            finish(key, talk, well=True)
        harness.cache.forget(key)
    assert harness.cache.check_integrity() == []
    assert harness.empty()
