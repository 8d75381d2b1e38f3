"""Fan-out (W3): what many sessions begin with is computed once, whichever is first, wherever it is meanwhile."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import make_random_gguf
from cfs.wire import Message
from cfs_server.engine.contract.interface import Delta, Engine
from engine_bench.prompts import Ideal, Prompts
from engine_bench.w3_fanout import BAR
from tests.engine.support import Answer, ask, collect, request, running, step_until, until, user
from tests.pacing.gate import Gate

EXACT: dict[str, Any] = {"flash_attention": False}
SHARED = "".join(f"Rule {number}: keep to the point of all the rules. " for number in range(52))
"""Some 2,000 tokens of the random models' vocabulary."""


def task(shared: str, number: int) -> list[Message]:
    """A child's history: what it shares with its siblings, and a task of some fifty tokens."""
    return [Message(role="system", content=shared), user(f"task {number}: " + f"do part {number} now " * 3)]


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a longer context."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "roomy.gguf", context=8192)


async def evaluated(engine: Engine, histories: Sequence[Sequence[Message]]) -> tuple[int, list[Answer]]:
    """Run sessions at once and count the prompt tokens that were evaluated for them."""
    before = (await engine.stats()).prompt_tokens_evaluated
    answers = await asyncio.gather(*(ask(engine, history, max_tokens=6) for history in histories))
    return (await engine.stats()).prompt_tokens_evaluated - before, answers


@pytest.mark.parametrize("children", [4, 16])
async def test_a_fan_out_costs_each_token_once(roomy: Path, children: int) -> None:
    """Cold, warm, and on a second level: tokens evaluated are at most 1.05 times the ideal."""
    ideal = Ideal(Prompts(roomy))
    async with running(roomy, **EXACT, pool_tokens=8192) as engine:
        for histories in (
            [task(SHARED, number) for number in range(children)],
            [task(SHARED, number + 100) for number in range(children)],
            [
                [*task(SHARED, 7), Message(role="assistant", content="ok " * 40), *task("", n)[1:]]
                for n in range(children)
            ],
        ):
            wanted = sum(ideal.add(history) for history in histories)
            counted, answers = await evaluated(engine, histories)
            assert wanted <= counted <= BAR * wanted
            assert all(answer.finished.usage.prompt_tokens > 2000 for answer in answers)


async def test_a_parent_resumes_after_its_children(roomy: Path) -> None:
    """Sixteen children later, in a pool that never held all of them: the parent pays for its new message only."""
    async with running(roomy, **EXACT, pool_tokens=4096, context_tokens=4096) as engine:
        history = [Message(role="system", content=SHARED), user("split this up")]
        first = await ask(engine, history, "parent", max_tokens=6)
        await evaluated(engine, [task(SHARED, number) for number in range(16)])
        history += [Message(role="assistant", content="ok"), user("they are done")]
        again = await ask(engine, history, "parent", max_tokens=6)
        usage = again.finished.usage
        assert usage.cached_tokens >= first.finished.usage.prompt_tokens - 1
        assert usage.prompt_tokens - usage.cached_tokens < 40


async def test_sharing_changes_no_reply(roomy: Path) -> None:
    """Children answer greedily as they would alone in an engine of their own; so they do from memory."""
    histories = [task(SHARED[:500], number) for number in range(6)]
    alone = []
    for history in histories[:3]:
        async with running(roomy, **EXACT) as engine:
            alone.append((await ask(engine, history)).text)
    async with running(roomy, **EXACT, idle_seconds=0.0) as engine:
        for _ in range(2):
            together = await asyncio.gather(*(ask(engine, history) for history in histories))
            assert sum(answer.text != one for answer, one in zip(together, alone, strict=False)) <= 1
            await ask(engine, "somebody else")
            assert (await engine.stats()).sequences_parked > 0


async def test_owners_share_nothing(roomy: Path) -> None:
    """The same prompt of another owner is computed again: its speed must not tell that it was asked before."""
    async with running(roomy, **EXACT) as engine:
        first = await ask(engine, task(SHARED, 1), owner="alice", max_tokens=2)
        second = await ask(engine, task(SHARED, 1), owner="bob", max_tokens=2)
        third = await ask(engine, task(SHARED, 2), owner="bob", max_tokens=2)
    assert (first.finished.usage.cached_tokens, second.finished.usage.cached_tokens) == (0, 0)
    assert third.finished.usage.cached_tokens > 1900


async def test_who_waits_for_a_turn_that_is_cancelled_goes_on(roomy: Path, gate: Gate) -> None:
    """What the cancelled turn had computed is used, the rest is computed by one of those that waited."""
    async with running(roomy, **EXACT, step_tokens=64) as engine:
        first = request(task(SHARED, 0), max_tokens=3)
        gate.close(after=0)
        reading = asyncio.create_task(collect(engine, first))
        await step_until(engine, gate, lambda stats: stats.prompt_tokens_evaluated > 100)
        others = [asyncio.create_task(ask(engine, task(SHARED, number), max_tokens=3)) for number in range(1, 4)]
        await until(engine, lambda stats: stats.waiting == 3)
        engine.cancel(first.id)
        assert (await reading).finished.reason == "cancelled"
        gate.open()
        answers = await asyncio.gather(*others)
        counted = (await engine.stats()).prompt_tokens_evaluated
    assert all(answer.finished.usage.completion_tokens == 3 for answer in answers)
    assert counted < answers[0].finished.usage.prompt_tokens + 3 * 100


async def test_a_prompt_in_work_is_not_waited_for_when_little_is_shared(roomy: Path, gate: Gate) -> None:
    """Chats that share but the first words of their template begin at once."""
    async with running(roomy, **EXACT, step_tokens=64) as engine:
        long = request("x " * 1500, max_tokens=3)
        gate.close(after=0)
        reading = asyncio.create_task(collect(engine, long))
        await step_until(engine, gate, lambda stats: stats.prompt_tokens_evaluated > 100)
        gate.close(after=20)
        short = engine.generate(request("hello", max_tokens=2))
        assert isinstance(await anext(short), Delta)
        assert not reading.done()
        gate.open()
        await reading


async def test_deleting_one_of_two_sessions_keeps_what_the_other_needs(roomy: Path) -> None:
    """The shared beginning goes with the last session that has it."""
    async with running(roomy, **EXACT) as engine:
        for name in ("a", "b"):
            await ask(engine, task(SHARED, ord(name)), name, max_tokens=2)
        used = (await engine.stats()).cells_used
        engine.forget("a")
        stats = await engine.stats()
        assert used - 100 < stats.cells_used < used
        again = await ask(engine, task(SHARED, 5), "c", max_tokens=2)
        assert again.finished.usage.cached_tokens > 1900
        for name in ("b", "c"):
            engine.forget(name)
        stats = await engine.stats()
        assert (stats.cells_used, stats.gauges["parked_bytes"], stats.sequences_resident) == (0, 0, 0)
