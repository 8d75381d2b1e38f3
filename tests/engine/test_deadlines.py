"""A turn that may take so long and no longer: it ends then, whatever it is doing, and no other turn notices."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfs.errors import EngineError, WorkerCrashed
from cfs_server.engine.contract.interface import Delta
from cfs_server.engine.host.streams import BackpressureLimits
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.engine.support import ask, request, running, until
from tests.engine.test_supervisor import begin, kill_worker
from tests.pacing.clock import Clock
from tests.pacing.gate import Gate

EXACT: dict[str, Any] = {"flash_attention": False}


async def test_a_turn_that_speaks_is_ended_and_its_neighbour_is_not(tiny: Path, gate: Gate) -> None:
    """What it had computed was right, so the session's next turn need not compute it again."""
    async with running(tiny, **EXACT) as engine:
        neighbour = await begin(engine, gate, "first")
        late = await begin(engine, gate, "a story " * 20, "late", deadline_seconds=1000.0)
        gate.pass_time(1000.0)
        gate.open()
        with pytest.raises(EngineError, match=r"longer than 1000 seconds") as failure:
            await late
        assert type(failure.value) is EngineError
        again = await ask(engine, "a story " * 20, "late", max_tokens=5)
        assert again.finished.usage.cached_tokens == again.finished.usage.prompt_tokens - 1
        assert (await neighbour).finished.usage.completion_tokens == 1900


async def test_a_turn_that_waits_is_ended_without_ever_having_had_a_seat(tiny: Path, gate: Gate) -> None:
    """The time in the queue counts; nothing of its prompt was read."""
    async with running(tiny, **EXACT, parallel=1) as engine:
        first = await begin(engine, gate, "first")
        waiting = asyncio.create_task(ask(engine, "me too", max_tokens=5, deadline_seconds=1000.0))
        await until(engine, lambda stats: stats.waiting == 1)
        gate.pass_time(1000.0)
        with pytest.raises(EngineError, match=r"longer than 1000 seconds"):
            await waiting
        assert not first.done()
        gate.open()
        prompt = (await first).finished.usage.prompt_tokens
        assert (await engine.stats()).prompt_tokens_evaluated == prompt


async def test_the_earliest_deadline_is_first(tiny: Path, gate: Gate) -> None:
    """In whichever order the turns came."""
    ended: list[float] = []

    async def turn(engine: LlamaEngine, seconds: float) -> None:
        with pytest.raises(EngineError):
            await ask(engine, "me too", max_tokens=5, deadline_seconds=seconds)
        ended.append(seconds)

    async with running(tiny, **EXACT, parallel=1) as engine:
        first = await begin(engine, gate, "first")
        turns = [asyncio.create_task(turn(engine, seconds)) for seconds in (3000.0, 1000.0, 4000.0, 2000.0)]
        await until(engine, lambda stats: stats.waiting == len(turns))
        for left in (3, 2, 1, 0):
            gate.pass_time(1000.0)
            await until(engine, lambda stats, left=left: stats.waiting == left)  # type: ignore[misc]
        await asyncio.gather(*turns)
        assert not first.done()
        first.cancel()
    assert ended == [1000.0, 2000.0, 3000.0, 4000.0]


async def test_a_paused_turn_is_ended_while_the_engine_rests(tiny: Path, gate: Gate) -> None:
    """Nothing is computed or sent, so the worker wakes by itself; the reader gets the text and then the error."""
    async with running(tiny, **EXACT, backpressure=BackpressureLimits(tokens=20)) as engine:
        gate.close()
        wanted = request("a story", max_tokens=1900, deadline_seconds=1000.0)
        stream = engine.generate(wanted)
        said = [await anext(stream)]
        await until(engine, lambda stats: stats.gauges["turns_paused"] == 1)
        ours = engine._streams[wanted.id]
        gate.pass_time(999.7 - ours.age)
        await engine.stats()  # the worker looks at its clock again
        while not ours.over:
            ours._changed.clear()
            await ours._changed.wait()
        assert (await engine.stats()).gauges["turns_paused"] == 0
        with pytest.raises(EngineError, match="longer than"):
            said += [item async for item in stream]
        assert all(isinstance(item, Delta) for item in said)


async def test_a_turn_that_begins_again_with_the_next_worker_keeps_its_deadline(
    tiny: Path, gate: Gate, clock: Clock
) -> None:
    """What it had waited for the first one counts."""
    async with running(tiny, **EXACT, parallel=1) as engine:
        speaking = await begin(engine, gate, "first")
        before = (await engine.stats()).prompt_tokens_evaluated
        waiting = asyncio.create_task(ask(engine, "second", max_tokens=5, deadline_seconds=1000.0))
        await until(engine, lambda stats: stats.waiting == 1)
        await kill_worker(engine)
        clock.advance(1000.0)
        gate.open()
        with pytest.raises(WorkerCrashed):
            await speaking
        with pytest.raises(EngineError, match="longer than"):
            await waiting
        assert (await engine.stats()).prompt_tokens_evaluated == before
