"""Constraints: the choice is that of the settings among what the schema allows."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

import make_random_gguf
from cfs.errors import EngineError
from cfs.wire import Settings
from cfs_server.engine.chat.json_schema import PreparedSchema, prepare
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker import grammar as grammars
from cfs_server.engine.worker.candidates import LARGE, Candidates
from cfs_server.engine.worker.grammar import Constraint, Grammars, Mask
from cfs_server.engine.worker.sampling import Sampler

OBJECT: dict[str, Any] = {
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


@cache
def grammars_of(vocabulary: Vocabulary) -> Grammars:
    """Make grammars once: the table of a large vocabulary takes a quarter of a second."""
    return Grammars(vocabulary)


def standing(vocabulary: Vocabulary, text: str, schema: dict[str, Any] = OBJECT) -> Constraint:
    """Make a constraint that has accepted a text."""
    constraint = grammars_of(vocabulary).of_schema(schema)
    assert constraint is not None
    for token in vocabulary.tokenize(text, special=False):
        assert constraint.allows(int(token))
        constraint.accept(int(token))
    return constraint


def logits(vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
    """Make random logits."""
    return (np.random.default_rng(seed).standard_normal(vocabulary.size) * 3).astype(np.float32)


@pytest.mark.parametrize("text", BEGINNINGS)
def test_the_mask_is_all_that_is_allowed(vocabulary: Vocabulary, text: str) -> None:
    """Asked one by one and all at once, the answers are the same, but where the text that comes next is known.

    There the mask leaves only the longest token of it. Ends of replies are among them when it may end.
    """
    constraint = standing(vocabulary, text)
    mask = constraint.mask()
    assert 0 < mask.sum() < vocabulary.size / 4
    one_by_one = np.array([constraint.allows(token) for token in range(vocabulary.size)])
    if mask.sum() > 1:
        assert mask.tolist() == one_by_one.tolist()
    else:
        assert one_by_one[mask].all()
        assert len({vocabulary.piece(token)[0] for token in np.flatnonzero(one_by_one).tolist()}) == 1
    complete = standing(vocabulary, '{"colour":"red","count":7}')
    assert all(vocabulary.ends(int(token)) for token in np.flatnonzero(complete.mask()))
    assert complete.mask().tolist() == [complete.allows(token) for token in range(vocabulary.size)]


@pytest.mark.parametrize("text", ["{", '{"colour"', '{"colour": ', '{"colour": "red"', '{"colour": "red", "count": 7'])
def test_json_has_a_space_only_behind_its_marks(vocabulary: Vocabulary, text: str) -> None:
    """One behind a colon or a comma, if the model writes it, and none before; a weak model might write more."""
    (space,) = vocabulary.tokenize(" ", special=False)
    assert not standing(vocabulary, text).allows(int(space))
    standing(vocabulary, '{"colour": "深蓝", "count": -7}')
    standing(vocabulary, '{"colour":"red","count":0}')


@pytest.mark.parametrize("text", BEGINNINGS)
def test_without_a_temperature_the_best_allowed_token_is_chosen(vocabulary: Vocabulary, text: str) -> None:
    """Whether it is the best of all, one of the best, or far behind them."""
    buffer = Candidates(vocabulary.size)
    for seed in range(10):
        grammar = standing(vocabulary, text)
        wanted = np.flatnonzero(grammar.mask()).tolist()
        row = logits(vocabulary, seed)
        if seed % 3 == 0:
            row[wanted[seed % len(wanted)]] = 99
        elif seed % 3 == 1:
            row[wanted] += 7
        sampler = Sampler(Settings(temperature=0), grammar)
        assert sampler.sample(row, buffer) == max(wanted, key=lambda token: row[token])
        sampler.free()


@pytest.mark.parametrize("text", BEGINNINGS)
def test_forced_tokens_spell_the_only_text_that_is_left(vocabulary: Vocabulary, text: str) -> None:
    """At each of them every allowed token begins the rest of that text; the last one may go on behind it."""
    grammar = standing(vocabulary, text)
    forced = list(grammar.forced())
    assert bool(forced) == (text in ("", "{", '{"col', '{"colour":"深'))
    for place, token in enumerate(forced):
        assert list(grammar.forced()) == forced[place:]
        rest = b"".join(map(vocabulary.piece, forced[place:]))
        for other in np.flatnonzero(grammar.mask()).tolist():
            piece = vocabulary.piece(other)
            assert rest.startswith(piece) or piece.startswith(rest)
        assert grammar.allows(token)
        grammar.accept(token)
    grammar.free()


def test_a_text_that_is_cut_otherwise_is_forced_again(vocabulary: Vocabulary) -> None:
    """The rest of the text is spelled anew, and a choice ends it."""
    grammar = standing(vocabulary, "")
    whole = b"".join(map(vocabulary.piece, grammar.forced()))
    first = int(vocabulary.tokenize("{", special=False)[0])
    assert vocabulary.piece(first) == b"{"
    grammar.accept(first)
    assert b"".join(map(vocabulary.piece, grammar.forced())) == whole[1:]
    for token in list(grammar.forced()):
        grammar.accept(token)
    assert list(grammar.forced()) == []
    grammar.free()


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


class Fixed(Constraint):
    """A constraint that never goes on."""

    def __init__(self, constraint: Constraint) -> None:
        assert constraint._matcher is not None
        super().__init__(constraint._matcher, constraint._ends, constraint._mute)

    def accept(self, _token: int) -> None:
        """Stay."""


@pytest.mark.parametrize("changes", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}])
def test_random_logits_write_what_the_schema_allows(vocabulary: Vocabulary, changes: dict[str, Any]) -> None:
    """When no candidate is allowed, the whole vocabulary is asked; a reply ends when the grammar does."""
    grammar = grammars_of(vocabulary).of_schema(
        OBJECT | {"properties": OBJECT["properties"] | {"count": {"enum": [1, 22]}}}
    )
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


class Nothing(Constraint):
    """What a vocabulary leaves of a schema that it has no bytes for."""

    def __init__(self) -> None:
        """Have no matcher."""

    def allows(self, _token: int) -> bool:
        """Allow no token."""
        return False

    def mask(self) -> Mask:
        """Allow no token."""
        return np.zeros(10**6, dtype=bool)

    def free(self) -> None:
        """Hold nothing."""


def test_a_constraint_that_no_token_fits_fails_the_turn(vocabulary: Vocabulary) -> None:
    for settings in (Settings(temperature=0), Settings(seed=1)):
        sampler = Sampler(settings, Nothing())
        with pytest.raises(EngineError, match="allows no token"):
            sampler.sample(-np.arange(vocabulary.size, dtype=np.float32), Candidates(vocabulary.size))
        sampler.free()


def test_a_reply_fails_when_the_library_gives_up(vocabulary: Vocabulary) -> None:
    """It has limits of its own; beyond them a reply would not be known to fit."""
    constraint = standing(vocabulary, "{")
    brace = int(vocabulary.tokenize("{", special=False)[0])
    with pytest.raises(EngineError, match="JSON schema any further"):
        constraint.accept(brace)  # what it does not allow, to put it out of order
    with pytest.raises(EngineError, match="JSON schema any further"):
        constraint.mask()
    constraint.free()


def test_a_pattern_that_gets_too_complex_fails_its_reply_only(vocabulary: Vocabulary) -> None:
    """In the middle of it, when that shows; what the library may spend on a token is bounded."""
    grammars = Grammars(vocabulary)
    explosive = {"type": "string", "pattern": "^((.{0,500}b){0,500}x){0,500}$"}
    constraint = grammars.of_schema(explosive)
    assert constraint is not None
    random = np.random.default_rng(0)
    letters = [int(vocabulary.tokenize(letter, special=False)[0]) for letter in "abx"]
    constraint.accept(int(vocabulary.tokenize('"', special=False)[0]))

    def write(some: Constraint) -> None:
        for _ in range(20_000):
            some.mask()
            some.accept(int(random.choice(letters)))

    with pytest.raises(EngineError, match="JSON schema any further"):
        write(constraint)
    assert grammars.of_schema(OBJECT) is not None


def test_a_schema_is_compiled_once(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies under one schema stand each at its own place; only so many grammars are kept."""
    monkeypatch.setattr(grammars, "KEPT", 3)
    compiled: list[dict[str, Any]] = []

    def count(schema: dict[str, Any]) -> PreparedSchema:
        compiled.append(schema)
        return prepare(schema)

    monkeypatch.setattr(grammars, "prepare", count)
    made = Grammars(vocabulary)
    first, second = made.of_schema(OBJECT), made.of_schema(dict(OBJECT))
    assert first is not None
    assert second is not None
    assert len(compiled) == 1
    brace = int(vocabulary.tokenize("{", special=False)[0])
    first.accept(brace)
    assert not first.allows(brace)
    assert second.allows(brace)
    for number in range(5):
        other = made.of_schema({"const": number})
        assert other is not None
        other.free()
    assert len(made) == 3
    assert second.allows(brace)
    assert made.of_schema(None) is None
    with pytest.raises(EngineError, match="JSON schema"):
        made.of_schema({"type": "no-such-type"})
    assert len(made) == 3
    first.free()
    second.free()
