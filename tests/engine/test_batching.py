"""Many sessions in one pool: no answer changes, none fails, and nothing is computed twice."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cfs.wire import Message
from cfs_server.engine.contract.interface import Delta, Finished
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.engine.support import Answer, ask, collect, request, running, until, user
from tests.engine.test_supervisor import begin
from tests.pacing.gate import Gate

EXACT: dict[str, Any] = {"flash_attention": False}
"""Flash attention adds up in half precision, in the order of the pool's cells: too coarse to compare replies."""


def same(texts: Sequence[str], others: Sequence[str]) -> bool:
    """Whether replies are the same, but for one that a near tie may have turned: sums depend on the batch."""
    return sum(a != b for a, b in zip(texts, others, strict=True)) <= 1


async def converse(engine: LlamaEngine, key: str, turns: Sequence[str], tokens: int) -> list[Answer]:
    """Hold a conversation of several turns; the replies become part of the history."""
    history: list[Message] = []
    answers = []
    for content in turns:
        history.append(user(content))
        answers.append(await ask(engine, history, key, max_tokens=tokens))
        history.append(Message(role="assistant", content=answers[-1].text))
    return answers


async def test_an_answer_is_the_same_alone_and_among_others(tiny: Path) -> None:
    """Greedy replies do not depend on who else is in the batch, nor on how the prompt was cut into steps."""
    prompts = [f"number {number}: " + "word " * (40 * number) for number in range(6)]
    async with running(tiny, **EXACT) as engine:
        alone = [(await ask(engine, prompt, max_tokens=30)).text for prompt in prompts]
        together = await asyncio.gather(*(ask(engine, prompt, max_tokens=30) for prompt in prompts))
    assert same([answer.text for answer in together], alone)


async def test_a_second_turn_evaluates_only_what_is_new(tiny: Path) -> None:
    """The first prompt stays in the pool: the second turn pays for the reply and the new message at most."""
    async with running(tiny, **EXACT) as engine:
        first, second = await converse(engine, "s", ["word " * 100, "and now?"], tokens=10)
        evaluated = (await engine.stats()).prompt_tokens_evaluated
    assert first.finished.usage.cached_tokens == 0
    assert second.finished.usage.cached_tokens >= first.finished.usage.prompt_tokens
    new = second.finished.usage.prompt_tokens - second.finished.usage.cached_tokens
    assert evaluated == first.finished.usage.prompt_tokens + new
    assert new < 100


async def test_an_edited_history_is_what_the_model_sees(tiny: Path) -> None:
    """Kept computation never changes a reply: after an edit the answer is that of a fresh session (S8)."""
    edited = [user("a long first message " * 10), Message(role="assistant", content="yes"), user("go on")]
    async with running(tiny, **EXACT) as engine:
        fresh = await ask(engine, edited, "other")
        await converse(engine, "s", ["a long first message " * 10, "go on"], tokens=10)
        assert (await ask(engine, edited, "s")).text == fresh.text


async def test_parked_sessions_answer_as_if_they_had_stayed(tiny: Path) -> None:
    """Six conversations in a pool that holds two: the same replies, the same tokens evaluated, no failure."""
    turns = ["first " * 25, "second " * 25, "third " * 10]

    async def all_of_them(engine: LlamaEngine) -> list[list[str]]:
        talks = [
            await converse(engine, f"s{number}", [f"{number} {turn}" for turn in turns[:1]], 30) for number in range(6)
        ]
        more = [await converse(engine, f"s{number}", [f"{number} {turn}" for turn in turns], 30) for number in range(6)]
        return [[answer.text for answer in talk] for talk in [*talks, *more]]

    async with running(tiny, **EXACT, idle_seconds=1e9) as engine:
        roomy = await all_of_them(engine)
        evaluated = (await engine.stats()).prompt_tokens_evaluated
        assert (await engine.stats()).sequences_parked == 0
    async with running(tiny, **EXACT, pool_tokens=1024, context_tokens=1024) as engine:
        assert await all_of_them(engine) == roomy
        stats = await engine.stats()
    assert stats.sequences_parked >= 3
    assert stats.prompt_tokens_evaluated == evaluated
    assert stats.cells_used <= 1024


async def test_a_pool_that_overflows_twice_fails_nobody(tiny: Path) -> None:
    """Eight turns grow to twice the pool while they run: each is preempted at times, and ends as if alone."""
    prompts = [f"{number} starts here" for number in range(8)]
    async with running(tiny, **EXACT) as engine:
        alone = [(await ask(engine, prompt, max_tokens=230)).text for prompt in prompts]
    async with running(tiny, **EXACT, pool_tokens=1024, context_tokens=512) as engine:
        together = await asyncio.gather(*(ask(engine, prompt, max_tokens=230) for prompt in prompts))
        stats = await engine.stats()
    assert same([answer.text for answer in together], alone)
    assert all(answer.finished.reason == "length" for answer in together)
    assert stats.tokens_generated == 8 * 230
    assert stats.recomputed_tokens == 0


async def test_state_that_no_memory_was_left_for_is_computed_again(tiny: Path) -> None:
    """With no memory for parked state at all, preempted turns still end as if alone."""
    prompts = [f"{number} starts here" for number in range(4)]
    async with running(tiny, **EXACT) as engine:
        alone = [(await ask(engine, prompt, max_tokens=200)).text for prompt in prompts]
    async with running(tiny, **EXACT, pool_tokens=512, context_tokens=512, parked_bytes=0) as engine:
        together = await asyncio.gather(*(ask(engine, prompt, max_tokens=200) for prompt in prompts))
        stats = await engine.stats()
    assert same([answer.text for answer in together], alone)
    assert stats.sequences_parked == 0
    usages = [answer.finished.usage for answer in together]
    new = sum(usage.prompt_tokens - usage.cached_tokens for usage in usages)
    assert stats.recomputed_tokens > 0
    assert stats.prompt_tokens_evaluated == new + stats.recomputed_tokens, "usage tells what a turn needed, once"


async def test_parked_state_stays_within_its_budget(tiny: Path) -> None:
    """The state that was not used for the longest time goes first; its session just pays for its prompt again."""
    async with running(tiny, **EXACT, pool_tokens=512, context_tokens=512, parked_bytes=60_000) as engine:
        for number in range(8):
            await ask(engine, f"{number} " + "word " * 20, f"s{number}", max_tokens=4)
        stats = await engine.stats()
        assert 0 < stats.gauges["parked_bytes"] <= 60_000
        assert stats.sequences_parked < 7
        again = await ask(engine, "0 " + "word " * 20, "s0", max_tokens=4)
        assert again.finished.usage.cached_tokens < 20  # what every chat begins with


async def test_a_long_prompt_does_not_silence_a_running_stream(tiny: Path, gate: Gate) -> None:
    """While 1,900 tokens of a prompt are read, a stream that runs gets a token in every other step at least."""
    async with running(tiny, **EXACT, step_tokens=64) as engine:
        speaking = await begin(engine, gate, "short")
        before = await engine.stats()
        reading = asyncio.create_task(ask(engine, "x " * 900, max_tokens=1))
        await until(engine, lambda stats: stats.running == 2)
        gate.open()
        answer = await reading
        after = await engine.stats()
        steps = after.steps - before.steps
        assert answer.finished.usage.prompt_tokens > 1800
        assert steps >= 1800 / 64
        assert after.tokens_generated - before.tokens_generated >= steps // 2
        assert (await speaking).finished.usage.completion_tokens == 1900


async def test_waiting_turns_start_in_order(tiny: Path) -> None:
    """With one place, turns begin in the order in which they came."""
    begun: list[int] = []

    async def turn(engine: LlamaEngine, number: int) -> None:
        async for _ in engine.generate(request(f"{number}", max_tokens=3)):
            if number not in begun:
                begun.append(number)

    async with running(tiny, **EXACT, parallel=1) as engine:
        await asyncio.gather(*(turn(engine, number) for number in range(6)))
    assert begun == list(range(6))


async def test_cancel_stops_the_count_of_tokens(tiny: Path, gate: Gate) -> None:
    """After a cancel the model computes for others only."""
    async with running(tiny, **EXACT) as engine:
        wanted = request("endless", max_tokens=2000)
        stream = engine.generate(wanted)
        gate.close()
        await anext(stream)
        engine.cancel(wanted.id)
        assert [item async for item in stream][-1].__class__ is Finished
        gate.open()
        before = (await engine.stats()).tokens_generated
        await ask(engine, "another", max_tokens=5)
        assert (await engine.stats()).tokens_generated == before + 5


async def test_two_turns_on_one_key_do_not_mix(tiny: Path) -> None:
    """A caller that runs two turns of one session at once gets two right answers."""
    async with running(tiny, **EXACT) as engine:
        alone = [(await ask(engine, content)).text for content in ("one", "two")]
        both = await asyncio.gather(*(ask(engine, content, "same") for content in ("one", "two")))
        assert [answer.text for answer in both] == alone
        engine.forget("same")
        assert (await engine.stats()).sequences_resident == 2  # those of the first two, which have their own keys


async def test_forgotten_sessions_leave_nothing(tiny: Path) -> None:
    """Random submits, cancels and forgets in a pool far too small: at the end the books are right and all is free."""
    dice = random.Random(7)
    keys = [f"s{number}" for number in range(12)]
    async with running(tiny, **EXACT, pool_tokens=768, context_tokens=512, parallel=5, parked_bytes=300_000) as engine:
        tasks: dict[str, asyncio.Task[Answer]] = {}
        for _ in range(400):
            action = dice.random()
            if action < 0.5:
                settings = {"max_tokens": dice.randrange(1, 60), "temperature": dice.choice([0.0, 1.0])}
                wanted = request("w " * dice.randrange(1, 100), dice.choice(keys), **settings)
                tasks[wanted.id] = asyncio.create_task(collect(engine, wanted))
                await asyncio.sleep(0)
            elif action < 0.7 and tasks:
                engine.cancel(dice.choice(list(tasks)))
            elif action < 0.8 and tasks:
                dice.choice(list(tasks.values())).cancel()
            elif action < 0.9:
                engine.forget(dice.choice(keys))
            else:
                assert await engine.check_integrity() == []
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        failures = [task for task in tasks.values() if not task.cancelled() and task.exception()]
        assert failures == []
        for key in keys:
            engine.forget(key)
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.cells_used) == (0, 0, 0)
        assert (stats.sequences_resident, stats.sequences_parked, stats.gauges["parked_bytes"]) == (0, 0, 0)
        assert await engine.check_integrity() == []


async def test_forget_during_a_turn_frees_at_its_end(tiny: Path, gate: Gate) -> None:
    """Deleting a session cancels its turn and forgets it, in any order: nothing of it is kept."""
    async with running(tiny, **EXACT) as engine:
        wanted = request("endless", "doomed", max_tokens=2000)
        stream = engine.generate(wanted)
        gate.close()
        assert isinstance(await anext(stream), Delta)
        engine.forget("doomed")
        engine.cancel(wanted.id)
        assert isinstance([item async for item in stream][-1], Finished)
        stats = await engine.stats()
        assert (stats.cells_used, stats.sequences_resident, stats.sequences_parked) == (0, 0, 0)
