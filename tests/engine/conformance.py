"""What every engine must do (E4). A subclass supplies the fixture `engine` and, if need be, other words to say."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import pytest

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import Delta, Engine, Finished, GenerationRequest
from tests.engine.support import ask, collect, request, until


class EngineConformance:
    """The engine answers `ENDLESS` with far more than a thousand tokens, and fails for `failing()`."""

    ENDLESS = "endless"

    def held(self) -> AbstractContextManager[object]:
        """Make no endless reply end in the block: the engine soon stops, unless each step needs the test's own loop."""
        return nullcontext()

    def failing(self) -> GenerationRequest:
        """Make a request that this engine refuses with `EngineError`."""
        raise NotImplementedError

    async def test_text_then_exactly_one_finished(self, engine: Engine) -> None:
        """A reply is text, and then one `Finished` whose usage covers it."""
        answer = await ask(engine, "tell me something", max_tokens=12)
        assert answer.text
        assert all(delta.text for delta in answer.deltas)
        usage = answer.finished.usage
        assert usage.prompt_tokens > 0
        assert sum(delta.tokens for delta in answer.deltas) <= usage.completion_tokens <= 12
        assert usage.total_seconds >= usage.first_token_seconds >= 0

    async def test_max_tokens_ends_with_length(self, engine: Engine) -> None:
        """No reply is longer than asked for."""
        answer = await ask(engine, self.ENDLESS, max_tokens=7)
        assert answer.finished.reason == "length"
        assert answer.finished.usage.completion_tokens == 7

    async def test_cancel_ends_a_running_turn(self, engine: Engine) -> None:
        """What was said before the cancel stays said; the turn ends as cancelled."""
        wanted = request(self.ENDLESS, max_tokens=1500)
        stream = engine.generate(wanted)
        with self.held():
            first = await anext(stream)
            assert isinstance(first, Delta)
            engine.cancel(wanted.id)
            rest = [item async for item in stream]
        assert isinstance(rest[-1], Finished)
        assert rest[-1].reason == "cancelled"
        assert rest[-1].usage.completion_tokens < 1500

    async def test_cancel_before_the_first_token(self, engine: Engine) -> None:
        """A turn that was cancelled at once still ends properly."""
        wanted = request(self.ENDLESS, max_tokens=1500)
        with self.held():
            reading = asyncio.create_task(collect(engine, wanted))
            await asyncio.sleep(0)
            engine.cancel(wanted.id)
            assert (await reading).finished.reason == "cancelled"

    async def test_closing_the_iterator_cancels(self, engine: Engine) -> None:
        """Nothing is computed for a reader that went away."""
        stream = cast("AsyncGenerator[Delta | Finished]", engine.generate(request(self.ENDLESS, max_tokens=1500)))
        with self.held():
            await anext(stream)
            await stream.aclose()
            assert (await engine.stats()).running == 0
        before = (await engine.stats()).tokens_generated
        after_another = await ask(engine, self.ENDLESS, max_tokens=3)
        assert (await engine.stats()).tokens_generated == before + after_another.finished.usage.completion_tokens

    async def test_cancelling_the_reading_task_cancels(self, engine: Engine) -> None:
        """The same when the reader is a task that is cancelled."""
        wanted = request(self.ENDLESS, max_tokens=1500)
        with self.held():
            reading = asyncio.create_task(collect(engine, wanted))
            await until(engine, lambda stats: stats.running == 1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert (await engine.stats()).running == 0

    async def test_unknown_ids_are_ignored(self, engine: Engine) -> None:
        """Cancelling and forgetting what is not there does nothing."""
        engine.cancel("never-seen")
        engine.forget("never-seen")
        assert (await ask(engine, "still there?", max_tokens=3)).text

    async def test_twenty_turns_at_once(self, engine: Engine) -> None:
        """More turns than run side by side: each gets its own answer, the same as alone."""
        questions = [f"question number {number}" for number in range(20)]
        alone = [(await ask(engine, question, max_tokens=8)).text for question in questions[:3]]
        together = await asyncio.gather(*(ask(engine, question, max_tokens=8) for question in questions))
        assert [answer.text for answer in together[:3]] == alone
        assert all(answer.finished.usage.completion_tokens for answer in together)
        assert (await engine.stats()).running == 0

    async def test_any_text_is_a_message(self, engine: Engine) -> None:
        """Unicode, control characters, blank lines: the engine takes them as they are."""
        for content in ("你好，世界", "👩‍🚀🏳️‍🌈", "a\x00b\x1b[0m", "\n\n \t\n", "\u202eright", "x" * 300):
            answer = await ask(engine, f"say {content}", max_tokens=4)
            answer.text.encode()

    async def test_a_failing_turn_hurts_nobody_else(self, engine: Engine) -> None:
        """The error has a reason to show, and the turns beside it go on."""
        good = asyncio.create_task(ask(engine, self.ENDLESS, max_tokens=40))
        with pytest.raises(EngineError) as failure:
            await collect(engine, self.failing())
        assert failure.value.detail
        assert (await good).finished.usage.completion_tokens == 40

    async def test_a_turn_that_takes_too_long_fails(self, engine: Engine) -> None:
        """Its error says how long it was given; one that is quick enough does not notice its deadline."""
        with pytest.raises(EngineError, match=r"the turn took longer than 0\.001 seconds"):
            await ask(engine, self.ENDLESS, max_tokens=1500, deadline_seconds=0.001)
        answer = await ask(engine, self.ENDLESS, max_tokens=5, deadline_seconds=100)
        assert answer.finished.reason == "length"

    async def test_stats_count_up(self, engine: Engine) -> None:
        """Counters grow by what a turn used."""
        before = await engine.stats()
        answer = await ask(engine, "count this", max_tokens=5)
        after = await engine.stats()
        assert after.tokens_generated - before.tokens_generated >= answer.finished.usage.completion_tokens
        assert after.prompt_tokens_evaluated > before.prompt_tokens_evaluated
        assert after.state == "ready"
        assert engine.ready
