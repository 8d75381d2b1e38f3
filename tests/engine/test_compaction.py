"""Compaction: when what runs sits above holes, it moves down; nothing is computed again and no reply changes."""

import asyncio
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import make_random_gguf
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from cfs_server.engine.worker.scheduler import LEAST, RunningSequence, reallocate
from tests.engine.support import ask, running, until
from tests.engine.test_equality import PROMPT, REPLY, make, reply, speak
from tests.engine.test_prefix_cache import ROUNDING, CacheHarness, words
from tests.engine.test_scheduler import SchedulerHarness
from tests.pacing.gate import Gate

__all__ = ["make"]


def test_turns_that_are_moved_go_on_as_if_they_had_not_been(make: Callable[[], CacheHarness]) -> None:
    """Two that share a beginning, for each architecture; they share it still, and nothing is evaluated twice."""
    other_prompt = words((1, 90), (3, 20))
    expected = [reply(make(), PROMPT), reply(make(), other_prompt)]
    harness = make()
    harness.turn("rests", words((9, 60)))
    logs = [list(PROMPT), list(other_prompt)]
    allocations, halves = [], []
    for log in logs:
        allocations.append(harness.enter(log))
        halves.append(speak(harness, allocations[-1], log, REPLY // 2))
        harness.cache.commit(allocations[-1], array("i", log))
    cells, evaluated = harness.cache.pool.cells_used, harness.evaluated
    places = [
        RunningSequence(allocation, array("i", log), key)
        for allocation, log, key in zip(allocations, logs, "ab", strict=True)
    ]
    moved = reallocate(harness.cache, places)
    assert harness.cache.check_integrity() == []
    assert harness.cache.pool.cells_used == cells - 60
    for allocation, log, half, (wanted, logits) in zip(moved, logs, halves, expected, strict=True):
        assert allocation is not None
        rest = speak(harness, allocation, log, REPLY // 2)
        assert log == wanted
        assert np.allclose(np.concatenate([half, rest]), logits, atol=ROUNDING)
    assert harness.evaluated - evaluated == REPLY
    harness.turn("rests", words((9, 60), (4, 5)))
    assert harness.evaluated - evaluated == REPLY + 5


def test_memory_is_within_its_limit_after_a_move(tiny: Path) -> None:
    """Copies of what is on the device again are the first to go; with no memory at all nothing is lost either."""
    harness = CacheHarness(tiny, memory=0)
    log = words((1, 60))
    allocation = harness.enter(log)
    harness.compute(allocation, log)
    (moved,) = reallocate(harness.cache, [RunningSequence(allocation, array("i", log), "s")])
    assert moved is not None
    assert (moved.length, harness.cache.memory.used) == (59, 0)
    assert harness.cache.check_integrity() == []


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a longer context."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "roomy.gguf", context=8192)


@pytest.mark.parametrize("parked_bytes", [0, 1 << 24])
async def test_a_stream_above_a_long_prompt_that_is_gone_is_moved(roomy: Path, parked_bytes: int, gate: Gate) -> None:
    """Once; its reply is that of a stream alone, and no token is evaluated twice."""
    options = {"flash_attention": False, "pool_tokens": 8192, "parked_bytes": parked_bytes}
    async with running(roomy, **options) as engine:
        alone = await ask(engine, "a short question", max_tokens=400)
    async with running(roomy, **options) as engine:
        await ask(engine, "long " * 600, "long", max_tokens=2)
        gate.close()
        stream = asyncio.create_task(ask(engine, "a short question", max_tokens=400))
        await until(engine, lambda stats: stats.tokens_generated > 5)
        engine.forget("long")
        gate.open()
        answer = await stream
        stats = await engine.stats()
    assert stats.gauges["compactions"] == 1
    assert stats.recomputed_tokens == 0
    assert stats.tokens_generated == 402
    assert answer.text == alone.text


async def test_a_pool_that_was_empty_has_no_holes(roomy: Path) -> None:
    """What came after begins at its beginning, so nothing is moved."""
    async with running(roomy, pool_tokens=8192) as engine:
        await ask(engine, "long " * 600, "long", max_tokens=2)
        engine.forget("long")
        await ask(engine, "a short question", max_tokens=200)
        assert (await engine.stats()).gauges["compactions"] == 0


def test_few_holes_are_left_alone(tiny: Path) -> None:
    """Less than what is worth the trouble."""
    options = WorkerOptions(parallel=4, pool_tokens=LEAST, threads=1)
    harness = SchedulerHarness(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))
    harness.put("long", prompt=400, tokens=2)
    harness.run("long")
    harness.put("short", prompt=10, tokens=100, first=500)
    harness.run("short")
    assert harness.scheduler._compaction.count == 0
