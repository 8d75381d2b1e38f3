"""Models whose state has no parts: a session goes on from the end of its last turn, everything else is read again."""

import asyncio
from pathlib import Path

from cfs.wire import Message
from tests.engine.support import ask, running, user


async def test_a_second_turn_goes_on_from_the_first(recurrent: Path) -> None:
    """Also when the state went to memory meanwhile; an edited history is read again as a whole."""
    async with running(recurrent, idle_seconds=0.0) as engine:
        first = await ask(engine, "word " * 30, "s", max_tokens=10)
        await ask(engine, "another", max_tokens=5)
        history = [user("word " * 30), Message(role="assistant", content=first.text), user("and now?")]
        second = await ask(engine, history, "s", max_tokens=10)
        edited = await ask(engine, [user("ward " * 30), *history[1:]], "s", max_tokens=10)
    usage = first.finished.usage
    if "\ufffd" not in first.text and first.text == first.text.strip():
        assert second.finished.usage.cached_tokens >= usage.prompt_tokens
    assert edited.finished.usage.cached_tokens == 0


async def test_more_sessions_than_sequences(recurrent: Path) -> None:
    """Twelve conversations on three sequences: each gets the answers that it gets alone."""
    async with running(recurrent) as engine:
        alone = [(await ask(engine, f"number {number} " * 20, max_tokens=20)).text for number in range(12)]
    async with running(recurrent, parallel=2) as engine:
        together = await asyncio.gather(*(ask(engine, f"number {n} " * 20, f"s{n}", max_tokens=20) for n in range(12)))
        for number in range(12):
            engine.forget(f"s{number}")
        stats = await engine.stats()
        assert (stats.cells_used, stats.gauges["parked_bytes"], stats.sequences_resident) == (0, 0, 0)
    assert sum(answer.text != one for answer, one in zip(together, alone, strict=True)) <= 1


async def test_a_small_memory_loses_states_and_no_answer(recurrent: Path) -> None:
    """What is not kept is read again."""
    async with running(recurrent, parallel=2, parked_bytes=0) as engine:
        for number in range(6):
            assert (await ask(engine, f"{number}", f"s{number}", max_tokens=3)).finished.usage.completion_tokens == 3
        assert (await engine.stats()).gauges["parked_bytes"] == 0
