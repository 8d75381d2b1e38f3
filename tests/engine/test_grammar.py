"""Grammars: the choice is that of the settings among what the schema allows, and the library is asked little."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

import make_random_gguf
from cfs.errors import EngineError
from cfs.wire import Settings
from cfs_server.engine.gbnf import schemas
from cfs_server.engine.llama import grammar as grammars
from cfs_server.engine.llama.candidates import LARGE, Candidates
from cfs_server.engine.llama.first_bytes import FEW_BYTES, Ask, FirstBytes
from cfs_server.engine.llama.grammar import Grammar, Grammars
from cfs_server.engine.llama.sampling import Sampler
from cfs_server.engine.llama.vocabulary import Vocabulary

OBJECT = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "深蓝"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
BEGINNINGS = ("", "{", '{"col', '{"colour":"', '{"colour":"深', '{"colour":"red","count":', '{"colour":"red","count":7')


@pytest.fixture(scope="module", params=["tiny", "large"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    """A small vocabulary, and one in which candidates are looked for."""
    path = tmp_path_factory.mktemp("models") / "vocabulary.gguf"
    if request.param == "large":
        make_random_gguf.SHAPES["large"] = replace(make_random_gguf.SHAPES["tiny"], vocabulary=LARGE + 100)
    make_random_gguf.make(path, request.param)
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    yield Vocabulary(model)
    lib.llama_model_free(model)


def standing(vocabulary: Vocabulary, text: str, schema: dict[str, Any] = OBJECT) -> Grammar:
    """Make a grammar that has accepted a text."""
    grammar = Grammars(vocabulary).get(schema)
    assert grammar is not None
    for token in vocabulary.tokenize(text, special=False):
        assert grammar.allows(int(token))
        grammar.accept(int(token))
    return grammar


def allowed(vocabulary: Vocabulary, grammar: Grammar) -> list[int]:
    """Ask about the whole vocabulary."""
    everything = Candidates(vocabulary.size)
    everything.fill(np.zeros(vocabulary.size, dtype=np.float32))
    grammar.mask(everything)
    return sorted(everything.ids.tolist())


def logits(vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
    """Make random logits."""
    return (np.random.default_rng(seed).standard_normal(vocabulary.size) * 3).astype(np.float32)


@pytest.mark.parametrize("text", BEGINNINGS)
def test_the_possible_tokens_are_all_that_are_allowed(vocabulary: Vocabulary, text: str) -> None:
    """First bytes sort out most of a vocabulary and nothing that is allowed; the mask leaves exactly that."""
    grammar = standing(vocabulary, text)
    wanted = allowed(vocabulary, grammar)
    buffer = Candidates(vocabulary.size)
    possible = grammar.possible(buffer)
    assert wanted
    assert set(wanted) <= set(possible.tolist())
    assert len(possible) < vocabulary.size / 4
    buffer.fill(logits(vocabulary, 0), possible)
    assert grammar.mask(buffer) == len(wanted)
    assert sorted(buffer.ids.tolist()) == wanted
    grammar.free()


@pytest.mark.parametrize("text", BEGINNINGS)
def test_the_library_is_asked_about_few_tokens(vocabulary: Vocabulary, text: str) -> None:
    """About those of one byte, some of two, and what is left behind them: not about all that begin alike."""
    grammar = standing(vocabulary, text)
    before, buffer = grammar.asked, Candidates(vocabulary.size)
    buffer.fill(logits(vocabulary, 0), grammar.possible(buffer))
    assert grammar.mask(buffer)
    assert grammar.asked - before < 256 + FEW_BYTES * 256 / 4
    grammar.free()


@pytest.mark.parametrize("text", BEGINNINGS)
def test_without_a_temperature_the_best_allowed_token_is_chosen(vocabulary: Vocabulary, text: str) -> None:
    """Whether it is the best of all, one of the best, or far behind them."""
    buffer = Candidates(vocabulary.size)
    for seed in range(10):
        grammar = standing(vocabulary, text)
        wanted = allowed(vocabulary, grammar)
        row = logits(vocabulary, seed)
        if seed % 3 == 0:
            row[wanted[seed % len(wanted)]] = 99
        elif seed % 3 == 1:
            row[wanted] += 7
        sampler = Sampler(Settings(temperature=0), grammar)
        assert sampler.sample(row, buffer) == max(wanted, key=lambda token: row[token])
        sampler.free()


def test_draws_among_the_candidates_keep_their_proportions(vocabulary: Vocabulary) -> None:
    """A token that is refused makes way for the others in proportion to their probabilities."""
    grammar = standing(vocabulary, '{"colour":"red","count":')
    digits = [int(vocabulary.tokenize(digit, special=False)[0]) for digit in "123"]
    row = np.full(vocabulary.size, -50, dtype=np.float32)
    row[digits] = np.log([0.1, 0.2, 0.1])
    row[vocabulary.tokenize("x", special=False)[0]] = np.log(0.6)
    buffer = Candidates(vocabulary.size)
    counted: Counter[int] = Counter()
    for seed in range(1500):
        sampler = Sampler(Settings(temperature=1, top_p=1, min_p=0, seed=seed))
        sampler._grammar = Fixed(grammar)
        counted[sampler.sample(row, buffer)] += 1
        sampler._grammar = None
        sampler.free()
    grammar.free()
    assert counted.keys() == set(digits)
    shares = [counted[digit] / 1500 for digit in digits]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.04)


class Fixed(Grammar):
    """A grammar that never goes on."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar._raw, grammar._first_bytes)

    def accept(self, _token: int) -> None:
        """Stay."""


@pytest.mark.parametrize("changes", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}])
def test_random_logits_write_what_the_schema_allows(vocabulary: Vocabulary, changes: dict[str, Any]) -> None:
    """When no candidate is allowed, the whole vocabulary is asked; a reply ends when the grammar does."""
    grammar = Grammars(vocabulary).get(OBJECT | {"properties": OBJECT["properties"] | {"count": {"enum": [1, 22]}}})  # type: ignore[operator]
    sampler = Sampler(Settings(temperature=2.0, seed=5, **changes), grammar)
    buffer = Candidates(vocabulary.size)
    reply, step = b"", 0
    while not vocabulary.ends(token := sampler.sample(logits(vocabulary, step), buffer)):
        reply, step = reply + vocabulary.piece(token), step + 1
    assert json.loads(reply)["count"] in (1, 22)
    sampler.free()


def test_the_name_of_a_special_token_is_no_text(vocabulary: Vocabulary) -> None:
    """The library would take <|im_start|> for the characters of its name, of which the reply has none."""
    special = int(vocabulary.tokenize("<|im_start|>", special=True)[0])
    grammar = standing(vocabulary, '"', {"type": "string", "minLength": 3})
    assert not grammar.allows(special)
    row = np.zeros(vocabulary.size, dtype=np.float32)
    row[special] = 99
    for settings in (Settings(temperature=0), Settings(seed=1)):
        fresh = standing(vocabulary, '"', {"type": "string", "minLength": 3})
        sampler = Sampler(settings, fresh)
        assert sampler.sample(row, Candidates(vocabulary.size)) != special
        sampler.free()
    grammar.free()


def test_a_grammar_that_no_token_fits_fails_the_turn(vocabulary: Vocabulary) -> None:
    """It is said; the library would end the process if it were told to go on."""
    grammar = standing(vocabulary, "")
    grammar._first_bytes = NoBytes()
    sampler = Sampler(Settings(temperature=0), grammar)
    with pytest.raises(EngineError, match="allows no token"):
        sampler.sample(-np.arange(vocabulary.size, dtype=np.float32), Candidates(vocabulary.size))
    sampler.free()


class NoBytes(FirstBytes):
    """What is known of a vocabulary that has nothing to write with."""

    def __init__(self) -> None:
        self.mute = np.ones(10**6, dtype=bool)

    def possible(self, _ask: Ask) -> NDArray[np.int32]:
        """Find nothing."""
        return np.arange(5, dtype=np.int32)


def test_a_schema_is_compiled_once(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies under one schema stand each at its own place; only so many grammars are kept."""
    monkeypatch.setattr(grammars, "KEPT", 3)
    compiled: list[dict[str, Any]] = []

    def count(schema: dict[str, Any]) -> schemas.Grammar:
        compiled.append(schema)
        return schemas.grammar(schema)

    monkeypatch.setattr(grammars, "write_grammar", count)
    made = Grammars(vocabulary)
    first, second = made.get(OBJECT), made.get(dict(OBJECT))
    assert first is not None
    assert second is not None
    assert len(compiled) == 1
    brace = int(vocabulary.tokenize("{", special=False)[0])
    first.accept(brace)
    assert not first.allows(brace)
    assert second.allows(brace)
    for number in range(5):
        other = made.get({"const": number})
        assert other is not None
        other.free()
    assert len(made) == 3
    assert second.allows(brace)
    assert made.get(None) is None
    with pytest.raises(EngineError, match="JSON schema"):
        made.get({"type": "no-such-type"})
    assert len(made) == 3
    first.free()
    second.free()
