"""Reproducible turns: with a seed the same text, whatever else runs and was computed before."""

import asyncio
from pathlib import Path
from typing import Any

from cfs.wire import Message, TokenLogprob
from cfs_server.engine.contract.interface import Delta, Finished
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.engine.worker.isolated_turns import PIECE
from tests.engine.support import Answer, ask, request, running, until, user
from tests.engine.test_supervisor import begin
from tests.pacing.gate import Gate

DICE: dict[str, Any] = {"reproducible": True, "seed": 7, "temperature": 1.2, "top_k": 0, "min_p": 0.0}
TALK = [user("Tell me about the sea. " * 6), Message(role="assistant", content="It is blue."), user("And the sky?")]


async def roll(engine: LlamaEngine, tokens: int = 30, **changes: Any) -> tuple[str, list[TokenLogprob]]:
    """Ask for a reproducible turn: its text and, to the last bit, what the model thought of each token."""
    answer = await ask(engine, TALK, max_tokens=tokens, logprobs=3, **DICE | changes)
    return answer.text, [token for delta in answer.deltas for token in delta.logprobs]


async def busy(engine: LlamaEngine, number: int, *, until: asyncio.Event) -> None:
    """Be a neighbour that talks all the time: some of what the others say, and more."""
    count = 0
    while not until.is_set():
        count += 1
        await ask(engine, [*TALK[: count % 3], user(f"{number} {'word ' * (count % 40)}")], f"n{number}", max_tokens=20)


async def test_a_seed_gives_the_same_text_among_neighbours(tiny: Path) -> None:
    """Twenty times, alone and beside fifteen that are busy, after all that was computed meanwhile."""
    async with running(tiny, parallel=16) as engine:
        rolls = [await roll(engine) for _ in range(5)]
        done = asyncio.Event()
        neighbours = [asyncio.create_task(busy(engine, number, until=done)) for number in range(15)]
        for _ in range(3):
            rolls += await asyncio.gather(*(roll(engine) for _ in range(4)))
        done.set()
        await asyncio.gather(*neighbours)
        rolls += [await roll(engine) for _ in range(3)]
        assert (await roll(engine, seed=8))[0] != rolls[0][0]
    async with running(tiny, parallel=4, pool_tokens=512, step_tokens=64) as engine:
        rolls.append(await roll(engine))
    assert len(rolls) > 20
    assert all(again == rolls[0] for again in rolls)


async def test_threads_and_cells_do_not_matter(tiny: Path) -> None:
    """On two threads the place of a sequence's cells changes its sums; a turn that has its own context has its own."""
    async with running(tiny, threads=2) as engine:
        before = await roll(engine, tokens=12)
        await asyncio.gather(*(ask(engine, f"{number} {'word ' * 50}", max_tokens=2) for number in range(3)))
        stream = engine.generate(request("short", max_tokens=1000))
        await anext(stream)
        assert await roll(engine, tokens=12) == before
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_session_may_have_said_its_history_itself(demo: Path) -> None:
    """The tokens that the model chose may spell its reply in another way than the text is cut; it must not matter."""
    async with running(demo) as engine:
        first = await ask(engine, [TALK[0]], "s", max_tokens=30, temperature=1.5, seed=3)
        history = [TALK[0], Message(role="assistant", content=first.text), user("And then?")]
        own = await ask(engine, history, "s", max_tokens=30, **DICE)
        other = await ask(engine, history, "other", max_tokens=30, **DICE)
    async with running(demo) as engine:
        fresh = await ask(engine, history, "s", max_tokens=30, **DICE)
    assert own.text == other.text == fresh.text


async def test_only_a_turn_that_can_be_the_same_is_computed_by_itself(tiny: Path) -> None:
    """Without a seed there is nothing to reproduce, and what is known is used; a temperature of 0 needs no seed."""

    async def cached(**settings: Any) -> int:
        return (await ask(engine, TALK, "s", max_tokens=3, **settings)).finished.usage.cached_tokens

    async with running(tiny) as engine:
        assert await cached(temperature=1.0) == 0
        assert await cached(temperature=1.0, reproducible=True) > 100
        assert await cached(temperature=1.0, seed=1) > 100
        assert await cached(temperature=1.0, seed=1, reproducible=True) == 0
        assert await cached(temperature=0.0, reproducible=True) == 0


async def test_others_speak_in_every_step(tiny: Path, gate: Gate) -> None:
    """While a reproducible turn reads a long prompt piece by piece, a stream gets a token for each piece."""
    async with running(tiny) as engine:
        speaking = await begin(engine, gate, "short")
        before = await engine.stats()
        reading = asyncio.create_task(ask(engine, "x " * 900, max_tokens=1, **DICE))
        await until(engine, lambda stats: stats.running == 2)
        gate.open()
        answer = await reading
        after = await engine.stats()
        pieces = answer.finished.usage.prompt_tokens / PIECE
        assert pieces > 25
        assert after.tokens_generated - before.tokens_generated >= pieces
        assert (await speaking).finished.usage.completion_tokens == 1900


async def test_a_reproducible_turn_leaves_nothing_behind(tiny: Path) -> None:
    """Neither when it ends, nor when it is cancelled, fails or its session is deleted; those that wait go on."""
    async with running(tiny) as engine:
        wanted = [request("endless", f"s{number}", max_tokens=1500, **DICE) for number in range(5)]
        streams = [engine.generate(turn) for turn in wanted]
        items: list[Delta | Finished] = [await anext(stream) for stream in streams[:2]]
        assert all(isinstance(item, Delta) for item in items)
        engine.forget("s0")
        engine.cancel(wanted[0].id)
        assert isinstance([item async for item in streams[0]][-1], Finished)
        assert isinstance(await anext(streams[2]), Delta)
        for turn in wanted[1:]:
            engine.cancel(turn.id)
        for stream in streams[1:3]:
            assert isinstance([item async for item in stream][-1], Finished)
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.cells_used) == (0, 0, 0)
        last: Answer = await ask(engine, "more", max_tokens=3, **DICE)
        assert last.finished.usage.completion_tokens == 3
        assert (await engine.stats()).sequences_resident == 0
