"""Nothing is computed ahead of a reader that does not read, and no other notices such a reader."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from cfs.errors import WorkerCrashed
from cfs_server.engine.contract.interface import Delta, EngineStats, Finished
from cfs_server.engine.host.streams import BackpressureLimits
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.engine.support import ask, request, running, until
from tests.engine.test_supervisor import kill_worker
from tests.pacing.gate import Gate, closed

SOON = BackpressureLimits(tokens=40)
UNREAD = SOON.tokens + 10
"""Steps that make more than a reader may leave unread."""
EXACT: dict[str, Any] = {"flash_attention": False, "backpressure": SOON}
Stream = AsyncGenerator[Delta | Finished]


async def stalled(engine: LlamaEngine, gate: Gate, *, tokens: int = 400) -> Stream:
    """Begin a long turn, take its first piece and stop reading; return when the engine has paused it."""
    with closed(gate):
        stream = cast("Stream", engine.generate(request("a long story", "slow", max_tokens=tokens)))
        await anext(stream)  # it may have all that these steps make
        gate.close(after=UNREAD)
        await until(engine, lambda stats: stats.gauges["turns_paused"] == 1)
    return stream


async def rest(stream: Stream) -> tuple[str, Finished]:
    """Read to the end."""
    items = [item async for item in stream]
    assert isinstance(items[-1], Finished)
    return "".join(item.text for item in items if isinstance(item, Delta)), items[-1]


async def test_a_turn_that_nobody_reads_stands_still_and_goes_on(tiny: Path, gate: Gate) -> None:
    """Neighbours are served meanwhile; the text is the one that an attentive reader gets, and nothing is read twice."""
    async with running(tiny, **EXACT, parallel=2) as engine:
        attentive = (await ask(engine, "a long story", "fast", max_tokens=400)).text
        stream = await stalled(engine, gate)
        before = await engine.stats()
        assert (before.running, before.waiting) == (0, 0)
        neighbours = await asyncio.gather(*(ask(engine, f"{number}", max_tokens=30) for number in range(5)))
        after = await engine.stats()
        assert after.tokens_generated - before.tokens_generated == 5 * 30
        assert all(answer.finished.reason == "length" for answer in neighbours)
        text, finished = await rest(stream)
        assert attentive.endswith(text)
        assert finished.usage.completion_tokens == 400
        assert (await engine.stats()).prompt_tokens_evaluated == after.prompt_tokens_evaluated


async def test_what_a_paused_turn_has_computed_may_leave_the_pool(tiny: Path, gate: Gate) -> None:
    """Without memory for it, it is even computed again; the text is the same."""
    small: dict[str, Any] = {"pool_tokens": 512, "context_tokens": 512, "parked_bytes": 0}
    async with running(tiny, **EXACT, **small) as engine:
        attentive = (await ask(engine, "a long story", "fast", max_tokens=300)).text
        engine.forget("fast")
        stream = await stalled(engine, gate, tokens=300)
        await ask(engine, "another", max_tokens=450)
        text, _ = await rest(stream)
        assert attentive.endswith(text)


async def test_a_paused_turn_can_be_cancelled(tiny: Path, gate: Gate) -> None:
    """Its reader finds what was said before, and the end."""
    async with running(tiny, **EXACT) as engine:
        wanted = request("a long story", "slow", max_tokens=1500)
        stream = cast("Stream", engine.generate(wanted))
        gate.close()
        await anext(stream)
        gate.close(after=UNREAD)
        await until(engine, lambda stats: stats.gauges["turns_paused"] == 1)
        engine.cancel(wanted.id)
        await until(engine, lambda stats: stats.gauges["turns_paused"] == 0)
        text, finished = await rest(stream)
        assert text
        assert finished.reason == "cancelled"


async def test_a_reader_that_leaves_a_paused_turn_leaves_nothing(tiny: Path, gate: Gate) -> None:
    """Closing the iterator cancels, and a session that is deleted meanwhile takes its state along."""
    async with running(tiny, **EXACT) as engine:
        stream = await stalled(engine, gate)
        engine.forget("slow")
        await stream.aclose()
        stats = await engine.stats()
        assert (stats.gauges["turns_paused"], stats.cells_used, stats.gauges["prefix_nodes"]) == (0, 0, 0)


async def test_a_paused_turn_learns_of_a_crash(tiny: Path, gate: Gate) -> None:
    """After the text that it had; the next worker knows nothing of it."""
    async with running(tiny, **EXACT) as engine:
        stream = await stalled(engine, gate)
        await kill_worker(engine)
        with pytest.raises(WorkerCrashed):
            await rest(stream)
        await ask(engine, "still there?", max_tokens=3)
        assert (await engine.stats()).gauges["turns_paused"] == 0


def paused_or_done(stats: EngineStats) -> bool:
    """Whether a turn is paused; on a busy machine all may have ended before the first pause reached the worker."""
    return stats.gauges["turns_paused"] > 0 or not (stats.running or stats.waiting)


async def test_pausing_and_resuming_again_and_again(tiny: Path) -> None:
    """Four readers on two places, none of which is quick: each gets all of its text."""
    async with running(tiny, flash_attention=False, backpressure=BackpressureLimits(tokens=3), parallel=2) as engine:
        alone = [(await ask(engine, f"story {number}", max_tokens=80)).text for number in range(4)]

        async def read(number: int) -> str:
            pieces: list[str] = []
            async for item in engine.generate(request(f"story {number}", max_tokens=80)):
                if isinstance(item, Delta):
                    if not pieces:
                        await until(engine, paused_or_done)
                    pieces.append(item.text)
            return "".join(pieces)

        together = await asyncio.gather(*map(read, range(4)))
    assert sum(a != b for a, b in zip(together, alone, strict=True)) <= 1  # near ties: see test_batching
