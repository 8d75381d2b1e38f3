"""Turns that are preempted while nothing can be kept of them: they end, and do not compute the same again and again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfs_server.engine.contract.interface import EngineStats
from cfs_server.engine.contract.protocol import Forget
from tests.engine.support import Answer, ask, running, until
from tests.engine.test_scheduler import SchedulerHarness, harness
from tests.pacing.gate import Gate

__all__ = ["harness"]
REPLY = 300


async def crowd(model: Path, **options: Any) -> tuple[int, EngineStats]:
    """Run six owners' long turns at once; returns the tokens that must be evaluated for them, and what was counted."""
    async with running(model, flash_attention=False, **options) as engine:
        turns = (ask(engine, f"{number} " * 30, owner=f"o{number}", max_tokens=REPLY) for number in range(6))
        answers: list[Answer] = await asyncio.gather(*turns)
        stats = await engine.stats()
    assert [answer.finished.usage.completion_tokens for answer in answers] == [REPLY] * 6
    return sum(answer.finished.usage.prompt_tokens for answer in answers), stats


@pytest.mark.parametrize("model", ["tiny", "recurrent", "windowed"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"parallel": 6, "pool_tokens": 1024}, id="pool full"),
        pytest.param({"parallel": 3, "pool_tokens": 768, "slice_seconds": 0.001}, id="pool full and slices"),
        pytest.param(
            {"parallel": 3, "pool_tokens": 768, "slice_seconds": 0.001, "parked_bytes": 60_000}, id="a little"
        ),
    ],
)
async def test_no_token_is_evaluated_more_than_twice(
    request: pytest.FixtureRequest, model: str, options: dict[str, Any]
) -> None:
    """Without memory for what leaves the pool, or with too little; what is evaluated again is counted."""
    prompts, stats = await crowd(request.getfixturevalue(model), **({"parked_bytes": 0} | options))
    ideal = prompts + 6 * REPLY
    evaluated = stats.prompt_tokens_evaluated + stats.tokens_generated
    assert evaluated <= 2 * ideal
    assert stats.recomputed_tokens == evaluated - ideal


@pytest.mark.parametrize("model", ["tiny", "recurrent"])
async def test_a_turn_that_cannot_be_kept_is_not_sliced(request: pytest.FixtureRequest, model: str) -> None:
    """Two run side by side to their ends, however short the slices; then the next two. Nothing is evaluated twice."""
    options = {"parallel": 2, "pool_tokens": 1024, "slice_seconds": 0.001, "parked_bytes": 0}
    prompts, stats = await crowd(request.getfixturevalue(model), **options)
    assert (stats.prompt_tokens_evaluated, stats.recomputed_tokens) == (prompts, 0)
    assert stats.steps >= 3 * REPLY


async def test_slices_go_on_where_the_pool_holds_everybody(tiny: Path, gate: Gate) -> None:
    """Without any memory: a short turn is answered in the middle of a long one, which then finds its state."""
    async with running(tiny, parallel=1, slice_seconds=0.001, parked_bytes=0, pool_tokens=4096) as engine:
        gate.close(after=600)
        long = asyncio.create_task(ask(engine, "endless", max_tokens=1200))
        await until(engine, lambda stats: stats.tokens_generated > 20)
        await ask(engine, "short", owner="other", max_tokens=5)
        assert not long.done()
        gate.open()
        await long
        assert (await engine.stats()).recomputed_tokens == 0


def test_a_session_that_is_deleted_while_its_turn_is_preempted_leaves_nothing(harness: SchedulerHarness) -> None:
    """The turns go on to their ends; then no state is left in the names of sessions that are gone."""
    names = [f"t{number}" for number in range(4)]
    for number, name in enumerate(names):
        harness.put(name, prompt=40, tokens=100, first=100 * number + 1)
    for _ in range(3):
        harness.scheduler.take_work()
        harness.scheduler.step()
    for name in names:
        harness.scheduler.inbox.put(Forget(f"key-{name}"))
    harness.run(*names)
    assert harness.scheduler._cache.pool.cells_used == 0
    assert harness.scheduler._cache.memory.used == 0
