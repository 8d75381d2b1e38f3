"""Speculation changes no reply: guessed tokens are verified, and what was wrong leaves no trace."""

import asyncio
import logging
import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cfs.wire import Message, TokenLogprob
from cfs_server.engine.contract.interface import EngineStats
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.streams import BackpressureLimits
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.engine.llama.cost_model import StepCost
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from cfs_server.engine.worker.lookup import (
    LONGEST,
    OWNER_TOKENS,
    SESSIONS,
    SHORTEST,
    Drafter,
    HitRates,
    Siblings,
    TokenIndex,
)
from cfs_server.engine.worker.speculation import Speculation
from cfs_server.engine.worker.stream_cost import StreamCost
from tests.engine.support import Answer, ask, request, running, until, user
from tests.pacing.gate import Gate

FILE = '{"name": "parser", "version": 3, "files": ["a.py", "b.py", "c.py"], "strict": true, "level": "high"}'
EDIT = [
    user("Write the settings of the parser."),
    Message(role="assistant", content=FILE),
    user("The same again with version 4."),
]
EDITED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"const": "parser"},
        "version": {"const": 4},
        "files": {"const": ["a.py", "b.py", "c.py"]},
        "strict": {"const": True},
        "level": {"const": "high"},
    },
    "required": ["name", "version", "files", "strict", "level"],
    "additionalProperties": False,
}
"""Makes a model of any quality write what a good one would."""


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "temperature_in_celsius": {"type": "integer", "minimum": -60, "maximum": 60},
        "description": {"enum": ["sunny", "rainy", "cloudy"]},
        "location": {
            "type": "object",
            "properties": {"country_code": {"enum": ["DE", "FR"]}, "is_capital": {"type": "boolean"}},
            "required": ["country_code", "is_capital"],
            "additionalProperties": False,
        },
    },
    "required": ["temperature_in_celsius", "description", "location"],
    "additionalProperties": False,
}


NEAR_TIE = 0.15
"""Two tokens whose logarithms of probability are closer than this may change places by rounding."""


async def both(model: Path, content: str | Sequence[Message], **settings: Any) -> tuple[Answer, Answer, EngineStats]:
    """Run the same turn with and without speculation; the counts are those with it."""
    async with running(model, speculation="always") as engine:
        guessed, stats = await ask(engine, content, **settings), await engine.stats()
    async with running(model) as engine:
        return guessed, await ask(engine, content, **settings), stats


def ranks(answer: Answer) -> list[TokenLogprob]:
    """Everything that was reported of the tokens."""
    return [token for delta in answer.deltas for token in delta.logprobs]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"temperature": 0.8, "seed": 5, "top_k": 0}, id="sampled"),
        pytest.param({"temperature": 0.7, "seed": 6, "presence_penalty": 0.2, "repeat_penalty": 1.02}, id="penalties"),
        pytest.param({"logit_bias": {"40": 1.0}, "min_tokens": 30}, id="bias"),
        pytest.param({"json_schema": EDITED}, id="schema"),
        pytest.param({"stop": ["c.py"]}, id="stop"),
        pytest.param({"max_tokens": 7}, id="short"),
    ],
)
async def test_a_reply_is_that_without_speculation(demo: Path, settings: dict[str, Any]) -> None:
    """To the letter; log-probabilities agree up to rounding, and so do all counts of tokens but those of guesses."""
    guessed, plain, stats = await both(demo, EDIT, **{"max_tokens": 120, "logprobs": 2} | settings)
    assert guessed.text == plain.text
    assert guessed.finished.reason == plain.finished.reason
    assert guessed.finished.stop == plain.finished.stop
    usage, other = guessed.finished.usage, plain.finished.usage
    assert usage.completion_tokens == other.completion_tokens
    assert [token.token for token in ranks(guessed)] == [token.token for token in ranks(plain)]
    assert np.allclose([t.logprob for t in ranks(guessed)], [t.logprob for t in ranks(plain)], atol=0.05)
    assert stats.drafted_tokens == usage.accepted_prediction_tokens + usage.rejected_prediction_tokens
    assert (other.accepted_prediction_tokens, other.rejected_prediction_tokens) == (0, 0)


async def test_accepted_tokens_take_no_steps(demo: Path) -> None:
    """Each token of the reply is the one of a step or was guessed; the prompt's last piece gives the first."""
    guessed, plain, stats = await both(demo, EDIT, max_tokens=120, json_schema=EDITED)
    assert '"version": 4' in guessed.text.replace(":4", ": 4")
    assert stats.accepted_tokens > 20
    assert stats.tokens_generated - stats.accepted_tokens <= stats.steps < plain.finished.usage.completion_tokens


@pytest.mark.parametrize(
    ("model", "schema", "settings"),
    [
        pytest.param(model, schema, settings, id=f"{model}-{name}", marks=pytest.mark.slow if slow else ())
        for model in ("demo", "smollm2")
        for name, schema, settings, slow in (
            ("greedy", WEATHER, {}, model == "smollm2"),
            ("sampled", WEATHER, {"temperature": 0.9, "seed": 3}, False),
            ("penalties", EDITED, {"presence_penalty": 0.3}, model == "smollm2"),
        )
    ],
)
async def test_a_text_that_a_schema_forces_takes_no_steps(
    request: pytest.FixtureRequest, model: str, schema: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Names of members are computed in one batch, though nothing has them before; the reply is the same."""
    path: Path = request.getfixturevalue(model)
    order = {"max_tokens": 150, "logprobs": 1, "json_schema": schema, "stop": ["never"]} | settings
    guessed, plain, stats = await both(path, "Report.", **order)
    assert guessed.text == plain.text
    assert guessed.finished.usage.completion_tokens == plain.finished.usage.completion_tokens
    assert [token.token for token in ranks(guessed)] == [token.token for token in ranks(plain)]
    assert np.allclose([t.logprob for t in ranks(guessed)], [t.logprob for t in ranks(plain)], atol=0.1)
    assert stats.accepted_tokens >= 8
    assert stats.steps <= 1 + stats.tokens_generated - stats.accepted_tokens


@pytest.mark.parametrize("model", ["recurrent", "hybrid"])
async def test_indivisible_state_is_not_speculated_on(request: pytest.FixtureRequest, model: str) -> None:
    """Refused tokens could not be taken out of it."""
    _, _, stats = await both(request.getfixturevalue(model), "one two one two one two", max_tokens=60)
    assert stats.drafted_tokens == 0


@pytest.mark.parametrize("model", ["tiny", "windowed"])
async def test_it_is_the_same_among_others(request: pytest.FixtureRequest, model: str) -> None:
    """Six turns in a pool for three, in slices, some paused, one cancelled, one a schema: texts and invariants hold."""
    path: Path = request.getfixturevalue(model)
    options: dict[str, Any] = {"pool_tokens": 768, "slice_seconds": 0.001, "parked_bytes": 60_000}

    async def crowd(engine: LlamaEngine) -> list[str]:
        endless = request_of(99)
        stream = engine.generate(endless)
        await anext(stream)
        turns = [asyncio.create_task(ask(engine, f"{number} " * 30, max_tokens=150)) for number in range(6)]
        await until(engine, lambda stats: stats.tokens_generated > 100)
        engine.cancel(endless.id)
        async for _ in stream:
            pass
        return [answer.text for answer in await asyncio.gather(*turns)]

    async with running(path, parallel=1, flash_attention=False) as engine:
        alone = [(await ask(engine, f"{number} " * 30, max_tokens=150)).text for number in range(6)]
    options |= {"parallel": 3, "flash_attention": False, "backpressure": BackpressureLimits(tokens=3)}
    async with running(path, speculation="always", **options) as engine:
        together = await crowd(engine)
        stats = await engine.stats()
        assert stats.accepted_tokens > 100
        assert stats.running == stats.waiting == 0
    assert sum(a != b for a, b in zip(together, alone, strict=True)) <= 1  # near ties: see test_batching


def request_of(number: int) -> Any:
    """Make a turn that does not end by itself."""
    return request(f"endless {number}", max_tokens=400)


async def test_guesses_come_from_sessions_of_the_owner_only(demo: Path) -> None:
    """A session's reply is guessed for the next one of its owner, not for that of another; nor after its deletion."""
    numbers = [number * 7919 % 900 + 100 for number in range(40)]
    items = [{"enum": [number, 1099 - number]} for number in numbers]  # a choice at each: nothing is forced for long
    schema = {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    texts: set[str] = set()

    async def accepted(key: str, owner: str) -> int:
        answer = await ask(engine, "Which?", key, max_tokens=200, json_schema=schema, owner=owner)
        texts.add(answer.text)
        return answer.finished.usage.accepted_prediction_tokens

    async with running(demo, speculation="always") as engine:
        first = await accepted("a", "one")
        assert await accepted("b", "one") > first + 50
        assert await accepted("c", "two") == first
        engine.forget("a")
        engine.forget("b")
        assert await accepted("d", "one") == first
    assert len(texts) == 1


async def test_a_reproducible_turn_is_not_guessed(demo: Path) -> None:
    """Its batches are always the same."""
    _, _, stats = await both(demo, EDIT, json_schema=EDITED, reproducible=True, max_tokens=60)
    assert stats.drafted_tokens == 0


async def test_a_cancelled_turn_leaves_nothing(tiny: Path, gate: Gate) -> None:
    """Between two steps there are no cells of guesses."""
    async with running(tiny, speculation="always") as engine:
        gate.close(after=30)
        wanted = request("one two one two", max_tokens=500)
        stream = engine.generate(wanted)
        await anext(stream)
        await until(engine, lambda stats: stats.accepted_tokens > 5)
        assert await engine.check_integrity() == []
        engine.cancel(wanted.id)
        gate.open()
        async for _ in stream:
            pass
        engine.forget(wanted.cache_key)
        assert (await engine.stats()).cells_used == 0


@pytest.mark.parametrize("model", ["demo", pytest.param("smollm2", marks=pytest.mark.slow)])
async def test_by_itself_it_guesses_only_where_the_text_stays_the_same(
    request: pytest.FixtureRequest, model: str
) -> None:
    """Whether it does depends on the kernels of the processor: with AVX2, SmolLM2 rounds alike and `demo` does not."""
    path: Path = request.getfixturevalue(model)
    log = NativeLog(lambda _level, _text: None)
    alike = load(str(path), WorkerOptions(threads=1), log, extra_buffers=False).rounds_alike
    async with running(path, speculation="auto") as engine, running(path) as other:
        for number in range(3):  # what a step costs is learned first
            content = f"Repeat this: {FILE[number:]}"
            guessed, plain = await ask(engine, content, max_tokens=60), await ask(other, content, max_tokens=60)
            assert guessed.text == plain.text
        assert alike or not (await engine.stats()).drafted_tokens


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["demo", "smollm2", "smollm2_q8_0"])
async def test_10000_greedy_tokens_are_the_same(request: pytest.FixtureRequest, model: str) -> None:
    """As served, up to near ties: kernels may round otherwise for several tokens than for one, also in prompts.

    A turn alone and six at a time follow each other. The six have places and a pool for three, take turns in slices,
    so that their state is parked, and share them with a turn that is cancelled; one of the six has a schema. How near
    is a tie is measured by the same turns without guesses.
    """
    path: Path = request.getfixturevalue(model)
    crowded: dict[str, Any] = {"parallel": 3, "pool_tokens": 2048, "context_tokens": 2048, "slice_seconds": 0.02}
    guesses, control = Agreement(), Agreement()
    parked = 0
    async with (
        running(path, speculation="always", **crowded) as engine,
        running(path, **crowded) as without,
        running(path) as other,
    ):
        for number in range(0, 700, 7):
            for turns in (range(number, number + 1), range(number + 1, number + 7)):
                (guessed, some), (rounded, _), plain = await asyncio.gather(
                    together(engine, turns), together(without, turns), one_by_one(other, turns)
                )
                parked += some
                for left, middle, right in zip(guessed, rounded, plain, strict=True):
                    guesses.add(left, right)
                    control.add(middle, right)
            if guesses.compared >= 10_000:
                break
        stats = await engine.stats()
    assert guesses.compared >= 10_000
    assert stats.accepted_tokens > 1000
    assert parked > 0
    counts = {"accepted": stats.accepted_tokens, "drafted": stats.drafted_tokens}
    logging.getLogger(__name__).info("%s", counts | {"guesses": guesses.counts(), "control": control.counts()})
    assert max(guesses.ties, default=0) <= max(NEAR_TIE, 1.4 * max(control.ties, default=0))
    assert guesses.usual_shift() < 1.2 * control.usual_shift() + 0.01


SOURCE = "".join(f"    value_{number} = read({number * 7919 % 100}, name='n{number}')\n" for number in range(200))


async def greedy(engine: LlamaEngine, number: int) -> list[TokenLogprob]:
    """Run one of the many turns: a copy, a count, or an edit by a schema."""
    start = 90 * (number % 50)
    content = f"Repeat this:\n\n{SOURCE[start : start + 600]}" if number % 2 else f"Count from {number} up."
    schema = {"json_schema": EDITED} if number % 7 == 6 else {}
    wanted = [*EDIT[:2], user(f"{EDIT[2].content} {number}")] if schema else [user(content)]
    return ranks(await ask(engine, wanted, f"greedy {number}", max_tokens=250, logprobs=2, **schema))


async def one_by_one(engine: LlamaEngine, turns: Iterable[int]) -> list[list[TokenLogprob]]:
    """Run some of these turns, each alone."""
    return [await greedy(engine, turn) for turn in turns]


async def together(engine: LlamaEngine, turns: Sequence[int]) -> tuple[list[list[TokenLogprob]], int]:
    """Run some of these turns at once, and beside them one that is cancelled; returns how many were parked, too."""
    end = asyncio.create_task(cancelled(engine)) if len(turns) > 1 else None
    answers = await asyncio.gather(*(greedy(engine, turn) for turn in turns))
    return answers, await end if end else 0


async def cancelled(engine: LlamaEngine) -> int:
    """Cancel a turn while others wait for its place; returns how many of them were parked."""
    wanted = request_of(99)
    stream = engine.generate(wanted)
    await anext(stream)
    await until(engine, lambda stats: stats.sequences_parked > 0 or not stats.waiting)
    parked = (await engine.stats()).sequences_parked
    engine.cancel(wanted.id)
    async for _ in stream:
        pass
    return parked


class Agreement:
    """How replies agree with those of turns alone, up to the first token that is another one."""

    def __init__(self) -> None:
        self.compared = 0
        self.shifts: list[float] = []
        """How far the logarithms of probability of the two best tokens moved against each other, at each token."""
        self.ties: list[float] = []
        """How far these were apart, without guesses, where the replies part."""

    def add(self, reply: list[TokenLogprob], alone: list[TokenLogprob]) -> None:
        """Compare two replies to the same turn."""
        for left, right in zip_longest(reply, alone):
            if left and right:
                own = {token.token: token.logprob for token in left.top}
                first, second = right.top
                if own.keys() == {first.token, second.token}:
                    moved = (own[first.token] - own[second.token]) - (first.logprob - second.logprob)
                    self.shifts.append(moved)
                if left.token == right.token:
                    self.compared += 1
                    continue
            first, second = (right or left).top  # one of them may have ended here
            self.ties.append(first.logprob - second.logprob)
            return

    def counts(self) -> dict[str, float]:
        """Return what the docs say."""
        counts = {"compared": self.compared, "parted": len(self.ties), "tie": max(self.ties, default=0)}
        return counts | {"shift": self.usual_shift(), "largest": self.largest_shift()}

    def usual_shift(self) -> float:
        """Return the root of the mean square."""
        return float(np.sqrt(np.mean(np.square(self.shifts))))

    def largest_shift(self) -> float:
        """Return the largest one, to either side."""
        return float(max(np.abs(self.shifts)))


def found_by_hand(tokens: list[int], log: list[int]) -> int:
    """Return how many tokens before some place of `tokens` agree with the end of `log`, at most."""
    best = 0
    for place in range(SHORTEST, len(tokens)):
        same = 0
        while same < min(place, len(log), LONGEST) and tokens[place - 1 - same] == log[-1 - same]:
            same += 1
        best = max(best, same)
    return best if best >= SHORTEST else 0


def test_an_index_finds_the_longest_occurrence() -> None:
    """Built at once or token by token, in the log itself."""
    dice = random.Random(1)
    for _ in range(30):
        tokens = [dice.randrange(3) for _ in range(dice.randrange(2, 60))]
        built, grown = TokenIndex(array("i", tokens)), TokenIndex(array("i"))
        for token in tokens:
            grown.tokens.append(token)
            grown.extend()
        if len(tokens) > SHORTEST:
            assert built.key == grown.key
        log = array("i", tokens)
        for index in (built, grown):
            index.extend()
            place, length = index.find(log, index.key)
            assert length <= found_by_hand(tokens, tokens)
            assert (length > 0) == (found_by_hand(tokens, tokens) > 0)
            if length:
                assert tokens[place - length : place] == tokens[-length:]
        assert built.find(log, built.key) == grown.find(log, grown.key)


def test_a_drafter_follows_what_it_copies() -> None:
    """It guesses what came behind the same tokens, learns how often that is right, and looks again when it is not."""
    rates = HitRates()
    drafter = Drafter(array("i", [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]), rates)
    drafter.follow(())
    assert drafter.guess(4).tolist() == [4, 5, 6, 7]
    before = rates.of(3)
    drafter.log.extend([4, 5])
    drafter.follow(())
    assert (drafter.matched, drafter.guess(2).tolist()) == (5, [6, 7])
    assert rates.of(3) > before
    drafter.log.append(99)
    drafter.follow(())
    assert not drafter.guess(2)


def test_a_rate_is_trusted_as_far_as_drafts_bear_it_out() -> None:
    """What is seldom accepted promises less; without drafts, trust comes back."""
    rates = HitRates()
    assert rates.trust == 1
    for _ in range(200):
        rates.verified(8 * rates.trust, 4)
    assert rates.trust == pytest.approx(0.5, rel=0.01)
    for _ in range(200):
        rates.verified(8 * rates.trust, 0)
    assert rates.trust == pytest.approx(0.3, rel=0.01), "or it would never be tried again"
    for _ in range(2000):
        rates.saw(3, hit=False)
    assert rates.trust > 0.9


@dataclass(eq=False)
class RepeatingTurn:
    """What speculation looks at in a turn that says the same again and again."""

    owner: str = "one"
    cache_key: str = ""
    left: int = 500
    forced: int = 0
    drafter: Drafter | None = None
    sampler: Any = field(default_factory=lambda: SimpleNamespace(forced=lambda: array("i")))
    log: "array[int]" = field(default_factory=lambda: array("i", [*range(100)] * 3))


def test_a_crowd_guesses_only_what_gains_much() -> None:
    """With many streams a step has little to spare, and guesses make later steps slower."""
    model: Any = SimpleNamespace(
        options=SimpleNamespace(speculation="on"),
        context=SimpleNamespace(partial=True, tiled=True),
        vocabulary=SimpleNamespace(ends_of_turns=frozenset()),
    )
    speculation = Speculation(model, StepCost(fixed=0.01, per_token=0.001))
    turns: Any = [RepeatingTurn() for _ in range(32)]
    for tokens in (1, 2, 4, 8, 16, 32, 63):
        speculation.saw_step(turns[:1], tokens, 0.02 + 0.002 * tokens)
    assert len(speculation.drafts(turns[:1], 10)) == 1
    assert len(speculation.drafts(turns[:2], 10)) == 2
    assert not speculation.drafts(turns, 10)


def test_siblings_are_bounded_and_forgotten() -> None:
    """By sessions and tokens of each owner; the newest stay. Those of other owners are never seen."""
    siblings = Siblings()
    run = np.arange(10, dtype=np.int32)
    for number in range(SESSIONS + 5):
        siblings.add("one", f"s{number}", run)
    siblings.add("two", "t", run)
    assert len(list(siblings.of("one", "s9"))) == SESSIONS - 1
    assert [index.tokens.tolist() for index in siblings.of("two", "")] == [run.tolist()]
    assert not list(siblings.of("two", "t"))
    siblings.add("one", "long", np.zeros(2 * OWNER_TOKENS, dtype=np.int32))
    assert sum(len(index.tokens) for index in siblings.of("one", "")) <= OWNER_TOKENS
    siblings.forget("long")
    assert not list(siblings.of("one", ""))


def test_costs_are_learned_by_the_size_of_a_step() -> None:
    """A second token may cost as much as the first one, and the next ones less. What is not known is tried."""
    cost = StreamCost(StepCost(fixed=0.01, per_token=0.0002), tiled=True)
    assert not cost.known
    cost.saw(1, 100, 0.0033)
    assert cost.known
    assert cost.seconds(2, 100) == pytest.approx(0.0033 + (0.0033 * 0.0002) ** 0.5)
    for _ in range(100):
        for tokens, seconds in ((1, 0.0033), (2, 0.0071), (8, 0.0146), (16, 0.0208)):
            cost.saw(tokens, 100, seconds)
    found = [round(1000 * cost.seconds(tokens, 100), 2) for tokens in (1, 2, 5, 8, 16, 21)]
    assert found == [3.3, 7.1, 10.85, 14.6, 20.8, 22.77]


def test_what_the_pool_costs_is_learned_for_all_sizes() -> None:
    """Turns that grow make each token dearer, also in steps of sizes that were seen before that."""
    cost = StreamCost(StepCost(fixed=0.01, per_token=0.0002), tiled=True)
    for _ in range(50):
        for tokens in (32, 44):
            cost.saw(tokens, 0, 0.02 + 0.0005 * tokens)
    for step in range(200):
        cost.saw(32, 0, 0.02 + (0.0005 + 0.0005 * step / 200) * 32)
    assert cost.seconds(44, 0) / cost.seconds(32, 0) > 1.15, "and not as if only the steps that are seen took longer"


def test_small_steps_say_little_of_large_ones() -> None:
    """What else runs makes a step of one token slower, by more than the cells of others do."""
    cost = StreamCost(StepCost(fixed=0.01, per_token=0.0002), tiled=True)
    for _ in range(50):
        for tokens, seconds in ((1, 0.0033), (16, 0.0208)):
            cost.saw(tokens, 0, seconds)
    for _ in range(100):
        cost.saw(1, 0, 0.0025)
    assert cost.seconds(16, 0) == pytest.approx(0.0208, rel=0.1)


def test_a_size_that_was_slow_for_a_while_is_tried_again() -> None:
    """Its time is forgotten when it has not been seen for long."""
    cost = StreamCost(StepCost(fixed=0.01, per_token=0.0002), tiled=True)
    cost.saw(2, 100, 1.0)
    for _ in range(1000):
        cost.saw(1, 100, 0.0033)
    assert cost.seconds(2, 100) == pytest.approx(1.0)
    for _ in range(1000):
        cost.saw(1, 100, 0.0033)
    assert cost.seconds(2, 100) < 0.0045


def test_a_late_step_counts_little() -> None:
    """A page fault or a pause of the machine is no reason to stop guessing."""
    cost = StreamCost(StepCost(fixed=0.01, per_token=0.0002), tiled=True)
    for seconds in (0.004, 0.004, 10.0):
        cost.saw(4, 100, seconds)
    assert cost.seconds(4, 100) < 0.005
