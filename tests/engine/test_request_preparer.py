"""What one owner asks of the worker does not hold up another one (E1): long prompts, and floods of texts to count."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import make_random_gguf
from cfs_server.engine.chat.prompt import PromptBuilder
from cfs_server.engine.contract.protocol import (
    AskStats,
    AskTokens,
    CancelTurn,
    CountedTokens,
    Forget,
    Generate,
    StopCounting,
    WorkerOptions,
)
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import LoadedModel, load
from cfs_server.engine.worker.generation import Generation, Refused
from cfs_server.engine.worker.request_preparer import Counter, RequestPreparer
from cfs_server.engine.worker.scheduler import Work
from tests.engine.support import running

LONG = [{"role": "user", "content": f"number {n} and " + "some words " * 200} for n in range(200)]
SHORT = [{"role": "user", "content": "hello"}]


class RequestHarness:
    """A preparer without its thread, and what it delivers."""

    def __init__(self, model: LoadedModel) -> None:
        self.delivered: list[Work] = []
        prompts = PromptBuilder(make_random_gguf.CHAT_TEMPLATE, special=model.vocabulary.special_text)
        wide = replace(model, context_tokens=1_000_000)
        self.preparer = RequestPreparer(wide, prompts, self.delivered.append, lambda _: None, lambda _: None)

    def turn(self, number: str, owner: str, messages: list[dict[str, Any]], key: str = "", keep: int = 0) -> None:
        settings = {"temperature": 0.0}
        self.preparer.put(Generate(number, key or number, keep, messages, settings, owner=owner, account=owner))

    def work(self, count: int) -> list[str]:
        """Go on until so many things were delivered; name all of them."""
        while len(self.delivered) < count:
            self.preparer.step()
        return [
            work.id
            if isinstance(work, Generation)
            else work.ended.id
            if isinstance(work, Refused)
            else type(work).__name__
            for work in self.delivered
        ]


@pytest.fixture(scope="module")
def model(tiny: Path) -> LoadedModel:
    """The tiny model."""
    log = NativeLog(lambda _level, _text: None)
    return load(str(tiny), WorkerOptions(parallel=1, pool_tokens=256, threads=1), log, extra_buffers=True)


@pytest.fixture
def harness(model: LoadedModel) -> RequestHarness:
    return RequestHarness(model)


def test_a_long_prompt_lets_others_pass(
    harness: RequestHarness, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that came later and is short is done first; the prompt is what it would have been."""
    monkeypatch.setattr("cfs_server.engine.worker.request_preparer.SLICE_SECONDS", 0.0)  # a slice is one piece of text
    harness.turn("long", "ann", LONG)
    for n in range(5):
        harness.turn(f"short {n}", "bob", SHORT)
    assert harness.work(6) == ["short 0", "short 1", "short 2", "short 3", "short 4", "long"]
    alone = RequestHarness(model)
    alone.turn("long", "ann", LONG)
    alone.work(1)
    one, other = alone.delivered[0], harness.delivered[-1]
    assert isinstance(one, Generation)
    assert isinstance(other, Generation)
    assert one.log == other.log


def test_what_concerns_a_turn_comes_after_it_and_a_question_after_all(harness: RequestHarness) -> None:
    harness.turn("long", "ann", LONG, key="a")
    harness.turn("short", "bob", SHORT, key="b")
    harness.preparer.put(Forget("a"))
    harness.preparer.put(AskStats(1))
    harness.preparer.put(Forget("b"))
    harness.turn("again", "ann", SHORT, key="a")
    found = harness.work(6)
    assert found.index("Forget") < found.index("AskStats")
    assert [name for name in found if name != "Forget"] == ["short", "long", "AskStats", "again"]
    assert isinstance(harness.delivered[-1], Generation)


def test_a_turn_that_is_cancelled_is_prepared_no_further(harness: RequestHarness) -> None:
    harness.turn("long", "ann", LONG)
    harness.turn("next", "ann", SHORT)
    harness.preparer.step()
    assert harness.delivered == []
    harness.preparer.put(CancelTurn("long"))
    assert harness.work(2) == ["long", "next"]
    cancelled = harness.delivered[0]
    assert isinstance(cancelled, Refused)
    assert cancelled.ended.reason == "cancelled"


def test_a_message_that_is_far_too_long_is_cut_no_further_than_it_must(harness: RequestHarness) -> None:
    harness.turn(
        "alone", "ann", [*SHORT, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "x y" * 1_400_000}]
    )
    harness.turn(
        "before",
        "ann",
        [{"role": "user", "content": "x y" * 1_400_000}, {"role": "assistant", "content": "hi"}, *SHORT],
    )
    harness.work(2)
    for refused, fits in zip(harness.delivered, (0, 1), strict=True):
        assert isinstance(refused, Refused)
        assert (refused.ended.kind, refused.ended.fits) == ("ContextTooLong", fits)


def test_questions_take_turns_and_are_dropped(model: LoadedModel) -> None:
    """Of many texts and of one, the one is counted first; what is no longer waited for is not counted."""
    said: list[CountedTokens] = []
    counter = Counter(model.vocabulary, PromptBuilder(None), said.append)
    texts = ["some words"] * 50
    for order in (AskTokens(1, texts), AskTokens(2, ["hello"]), AskTokens(3, texts), StopCounting(3), StopCounting(9)):
        counter.put(order)
    while len(said) < 3:
        counter.step()
    assert [answer.number for answer in said] == [3, 2, 1]
    assert said[2].counts == [said[2].counts[0]] * 50


async def test_what_nobody_waits_for_is_given_up(tiny: Path) -> None:
    """Through the worker: a cancelled question leaves nothing behind."""
    async with running(tiny) as engine:
        for _ in range(20):
            asked = asyncio.create_task(engine.count_tokens(["some words " * 30] * 10_000))
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        assert len((await engine.count_tokens(["a"])).texts) == 1
        assert (await engine.stats()).restarts == 0
