"""Bias, penalties and `min_tokens`: by the library's samplers, and by what models write."""

import asyncio
import ctypes
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from cfs.errors import TokenRefused
from cfs.wire import Settings
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.llama.ffi import NativeLog, Tokens
from cfs_server.engine.llama.model import load
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.candidates import Candidates, Logits
from cfs_server.engine.worker.logit_changes import LogitChanges
from cfs_server.engine.worker.sampling import Sampler
from tests.engine.support import Answer, ask, running, user
from tests.engine.test_batching import EXACT, same

SIZE = 300
END = 299
PROMPT: Tokens = np.array([3, 4, END, 5, 5], dtype=np.int32)
BOTH_MODELS = pytest.mark.parametrize("model", ["demo", pytest.param("smollm2", marks=pytest.mark.slow)])
ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


@pytest.fixture
def path(request: pytest.FixtureRequest, model: str) -> Path:
    """The file of a model."""
    found: Path = request.getfixturevalue(model)
    return found


def vocabulary_of(path: Path) -> Vocabulary:
    """Read a model's tokens in this process."""
    log = NativeLog(lambda _level, _text: None)
    return load(str(path), WorkerOptions(parallel=1, pool_tokens=256, threads=1), log, extra_buffers=True).vocabulary


def changes_of(prompt: Tokens = PROMPT, **settings: Any) -> LogitChanges:
    """Make the changes of a reply."""
    changes = LogitChanges.of(Settings(**settings), SIZE, {END}, prompt)
    assert changes is not None
    return changes


def by_library(row: Logits, said: list[int], bias: dict[int, float], last: int, *penalties: float) -> Logits:
    """Let the library's samplers change logits after some tokens."""
    entries = np.zeros(len(row), dtype=ENTRY)
    entries["id"], entries["logit"] = np.arange(len(row)), row
    pointer = ctypes.cast(entries.ctypes.data, lib.llama_token_data_p)
    array = lib.llama_token_data_array(data=pointer, size=len(row), selected=-1, sorted=False)
    biases = (lib.llama_logit_bias * len(bias))(*(lib.llama_logit_bias(*pair) for pair in bias.items()))
    penalty = lib.llama_sampler_init_penalties(len(row), last, *penalties)
    for token in said:
        lib.llama_sampler_accept(penalty, token)
    for sampler in (lib.llama_sampler_init_logit_bias(len(row), len(bias), biases), penalty):
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        lib.llama_sampler_free(sampler)
    changed = np.empty_like(row)
    changed[entries["id"]] = entries["logit"]
    return changed


def test_changes_are_those_of_the_library() -> None:
    """Of a reply that is shorter than the library's one window of all penalties, after an empty prompt."""
    for seed in range(10):
        random = np.random.default_rng(seed)
        row = (random.standard_normal(SIZE) * 3).astype(np.float32)
        said = random.integers(0, 20, 50).tolist()
        bias = {token: float(random.uniform(-100, 100)) for token in range(5, 40, 5)}
        repeat, frequency, presence = (float(random.uniform(low, 2)) for low in (0.5, -2, -2))
        changes = changes_of(
            PROMPT[:0],
            logit_bias={str(token): value for token, value in bias.items()},
            repeat_penalty=repeat,
            frequency_penalty=frequency,
            presence_penalty=presence,
        )
        for token in said:
            changes.accept(token)
        expected = by_library(row, said, bias, 64, repeat, frequency, presence)
        np.testing.assert_allclose(changes.applied(row), expected, rtol=1e-4, atol=1e-4)


def test_only_the_last_tokens_are_repeated() -> None:
    """Those of the prompt count, too, but not the ones that end messages; a window of 0 has none, -1 means all."""
    row = np.ones(SIZE, dtype=np.float32)

    def divided(window: int, *said: int) -> set[int]:
        changes = changes_of(repeat_penalty=2.0, repeat_last_n=window, min_tokens=1)
        for token in said:
            changes.accept(token)
        return set(np.flatnonzero(changes.applied(row) == 0.5).tolist())

    assert divided(0, 7) == set()
    assert divided(1) == {5}
    assert divided(2, 7) == {5, 7}
    assert divided(3, 7, 8, 7) == {7, 8}
    assert divided(64, 7) == divided(-1, 7) == {3, 4, 5, 7}


def test_a_reply_that_asks_for_nothing_has_no_changes() -> None:
    """Then sampling works on the model's own logits."""
    for settings in (Settings(), Settings(repeat_last_n=9), Settings(repeat_penalty=2, repeat_last_n=0)):
        assert LogitChanges.of(settings, SIZE, {END}, PROMPT) is None


def test_the_models_own_logits_are_reported() -> None:
    """Log-probabilities are the model's, and its row of logits stays as it is."""
    row = np.arange(SIZE, dtype=np.float32)
    sampler = Sampler(Settings(temperature=0), logprobs=1, changes=changes_of(logit_bias={"298": -100}, min_tokens=1))
    assert sampler.sample(row, Candidates(SIZE)) == 297
    assert [token for token, _ in sampler.ranked.popleft()] == [297, 299]
    assert row.tolist() == list(range(SIZE))


def most_repeated(answer: Answer) -> int:
    """How often the most frequent word of an answer stands there."""
    return Counter(answer.text.split()).most_common(1)[0][1]


@BOTH_MODELS
async def test_a_penalty_ends_repetition(path: Path) -> None:
    """A bias makes the model repeat itself, and each kind of penalty ends it; the neutral values change nothing."""
    token = str(int(vocabulary_of(path).tokenize(" the", special=False)[0]))
    async with running(path) as engine:

        async def said(**settings: Any) -> Answer:
            return await ask(
                engine, "Tell me a joke.", max_tokens=40, min_tokens=40, logit_bias={token: 20}, **settings
            )

        stuck = await said()
        neutral = await said(presence_penalty=0, frequency_penalty=0, repeat_penalty=1)
        penalties: list[dict[str, Any]] = [{"frequency_penalty": 2.0}, {"repeat_penalty": 10.0}]
        answers = await asyncio.gather(*(said(**penalty) for penalty in penalties))
    assert neutral.text == stuck.text
    assert most_repeated(stuck) == 40
    assert all(most_repeated(answer) < 30 for answer in answers)


@BOTH_MODELS
async def test_a_bias_removes_a_token_or_forces_it(path: Path) -> None:
    """Whatever the temperature."""
    vocabulary = vocabulary_of(path)
    async with running(path) as engine:
        plain = await ask(engine, "Tell me a joke.", max_tokens=20)
        first = int(vocabulary.tokenize(plain.text, special=False)[0])
        forced = int(vocabulary.tokenize("x", special=False)[-1])
        for temperature in (0.0, 2.0):
            asked: dict[str, Any] = {"max_tokens": 12, "temperature": temperature, "seed": 1}
            removed = await ask(engine, "Tell me a joke.", logit_bias={str(first): -100}, **asked)
            assert first not in vocabulary.tokenize(removed.text, special=False)
            told = await ask(engine, "Tell me a joke.", logit_bias={str(forced): 100}, **asked)
            assert told.text == vocabulary.piece(forced).decode() * 12


@BOTH_MODELS
async def test_a_reply_has_its_fewest_tokens(path: Path) -> None:
    """The model ends it afterwards; a stop string ends it before."""
    async with running(path) as engine:
        plain = await ask(engine, "Say hello.", max_tokens=200, reproducible=True)
        assert plain.finished.reason == "stop"
        shortest = plain.finished.usage.completion_tokens + 10
        longer = await ask(engine, "Say hello.", max_tokens=200, min_tokens=shortest, reproducible=True)
        stopped = await ask(engine, "Say hello.", max_tokens=200, min_tokens=200, stop=(plain.text[2:4],))
        limited = await ask(engine, "Say hello.", max_tokens=5, min_tokens=200)
    assert longer.text.startswith(plain.text)
    assert longer.finished.usage.completion_tokens >= shortest
    assert stopped.finished.reason == "stop"
    assert (limited.finished.reason, limited.finished.usage.completion_tokens) == ("length", 5)


async def test_seeds_reproduce_with_all_of_them(demo: Path) -> None:
    """Alone, beside others, and with a context of the turn's own."""
    changes: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repeat_penalty": 1.2}
    changes |= {"logit_bias": {"300": 3, "301": -5}, "min_tokens": 30, "temperature": 1.2, "max_tokens": 60}
    async with running(demo, flash_attention=False) as engine:

        async def roll(seed: int, **settings: Any) -> str:
            return (await ask(engine, "Tell me a joke.", seed=seed, **changes | settings)).text

        assert await roll(3) == await roll(3)
        assert len({await roll(seed) for seed in range(4)}) == 4
        isolated = await roll(3, reproducible=True)
        beside = await asyncio.gather(roll(3, reproducible=True), roll(4), roll(5))
    assert beside[0] == isolated


async def test_a_turn_that_was_preempted_goes_on_as_if_it_had_not_been(tiny: Path) -> None:
    """Its changes know what it said before, also where its state is lost."""
    prompts = [f"{number} starts here" for number in range(4)]
    changes: dict[str, Any] = {"frequency_penalty": 0.5, "repeat_penalty": 1.1, "min_tokens": 200, "max_tokens": 200}
    async with running(tiny, **EXACT) as engine:
        alone = [(await ask(engine, prompt, **changes)).text for prompt in prompts]
    async with running(tiny, **EXACT, pool_tokens=512, context_tokens=512, parked_bytes=0) as engine:
        together = await asyncio.gather(*(ask(engine, prompt, **changes) for prompt in prompts))
        stats = await engine.stats()
    assert stats.recomputed_tokens > 0
    assert same([answer.text for answer in together], alone)


async def test_a_schema_goes_before_bias_and_length(demo: Path) -> None:
    """JSON is complete when its schema says so, and no bias puts anything else into it."""
    properties = {"ok": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["ok"], "additionalProperties": False}
    async with running(demo) as engine:
        for temperature in (0.0, 1.0):
            answer = await ask(
                engine,
                "Is it?",
                json_schema=schema,
                temperature=temperature,
                min_tokens=100,
                max_tokens=150,
                frequency_penalty=2.0,
                logit_bias={"300": 100},
            )
            assert set(json.loads(answer.text)) == {"ok"}


async def test_a_token_that_the_model_has_not_is_refused(demo: Path) -> None:
    """By its number, and the turn alone."""
    async with running(demo) as engine:
        with pytest.raises(TokenRefused, match="there is no token 99999999: the model's tokens are 0 to "):
            await ask(engine, [user("Hello!")], logit_bias={"99999999": 1})
        assert (await ask(engine, "Hello!")).text
