"""Log-probabilities of a reply's tokens: the model's own, in step with the text that is shown."""

import math
from pathlib import Path

import numpy as np
import pytest

from cfs.wire import TokenLogprob
from cfs_server.engine.contract.protocol import Rank
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.log_probabilities import NEVER, Ranked, Reported, rank
from cfs_server.engine.worker.text import TextStream
from tests.engine.support import Answer, ask, running


class Pieces(Vocabulary):
    """A vocabulary of given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = dict(enumerate(pieces))


def said(answer: Answer) -> list[TokenLogprob]:
    """All tokens that an answer reports."""
    return [token for delta in answer.deltas for token in delta.logprobs]


def feed(pieces: list[bytes], stops: tuple[str, ...] = ()) -> list[tuple[str, list[str]]]:
    """Feed pieces as tokens; returns, after each and at the end, the new text and the tokens reported with it."""
    text, reported = TextStream(stops), Reported(Pieces(*pieces))
    seen = []
    for number in range(len(pieces) + 1):
        new = text.feed(pieces[number]) if number < len(pieces) else text.finish()
        if number < len(pieces):
            ranked: Ranked = [(number, 0.0)]
            reported.add(ranked, text)
        seen.append((new, [ranks[0].token for ranks in reported.take(text)] if new else []))
        if text.stopped:
            break
    return seen


def test_probabilities_are_those_of_the_logits() -> None:
    """They add up to one, and the most probable ones come in their order."""
    logits = np.array([1.0, 3.0, 2.0, -math.inf], dtype=np.float32)
    (token, own), *best = rank(logits, 2, 20)
    assert token == 2
    assert [number for number, _ in best] == [1, 2, 0, 3]
    assert sum(math.exp(value) for _, value in best) == pytest.approx(1)
    assert own == pytest.approx(2 - math.log(math.exp(1) + math.exp(2) + math.exp(3)))
    assert best[-1] == (3, NEVER)


def test_a_large_vocabulary_gives_what_a_small_one_does() -> None:
    """Only the most probable ones are looked at more closely; huge logits do not overflow."""
    logits = (np.random.default_rng(1).standard_normal(50_000) * 3 + 500).astype(np.float32)
    found = rank(logits, 7, 20)[1:]
    exact = logits.astype(np.float64)
    wanted = exact - np.log(np.exp(exact - exact.max()).sum()) - exact.max()
    assert [token for token, _ in found] == np.argsort(-exact)[:20].tolist()
    assert [value for _, value in found] == pytest.approx(np.sort(wanted)[::-1][:20].tolist())


def test_tokens_come_with_their_text() -> None:
    """A token whose character is not finished waits for the one that finishes it; so does white space."""
    data = "你".encode()
    assert feed([b" ", b"a", data[:1], data[1:], b" ", b"b"]) == [
        ("", []),
        ("a", [" ", "a"]),
        ("", []),
        ("你", [data[:1].decode("latin-1"), data[1:].decode("latin-1")]),
        ("", []),
        (" b", [" ", "b"]),
        ("", []),
    ]


def test_tokens_of_a_stop_string_are_not_reported() -> None:
    """Neither what begins it, nor white space before it; one that also brought text is."""
    assert feed([b"yes", b" U", b"s", b"er:"], ("User:",)) == [("yes", ["yes"]), ("", []), ("", []), ("", [])]
    assert feed([b"ye", b"sUs", b"er:"], ("User:",)) == [("ye", ["ye"]), ("s", []), ("", [])]
    assert feed([b"ye", b"sUser: me"], ("User:",)) == [("ye", ["ye"]), ("s", ["sUser: me"])]
    assert feed([b"yes", b"U", b"pper"], ("User:",)) == [("yes", ["yes"]), ("", []), ("Upper", ["U", "pper"]), ("", [])]
    assert feed([b"yes", b"  "]) == [("yes", ["yes"]), ("", []), ("", [])]


async def test_a_reply_reports_its_tokens(tiny: Path) -> None:
    """Their bytes are the reply's; without a temperature each is the first of its alternatives."""
    async with running(tiny, flash_attention=False) as engine:
        answer = await ask(engine, "tell", max_tokens=40, logprobs=3)
        plain = await ask(engine, "tell", max_tokens=40)
    tokens = said(answer)
    assert answer.text == plain.text
    assert said(plain) == []
    assert b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace").strip() == answer.text
    assert sum(delta.tokens for delta in answer.deltas) == pytest.approx(len(tokens), abs=2)
    for token in tokens:
        assert len(token.top) == 3
        assert token.top[0].model_dump() == token.model_dump(exclude={"top"})
        assert 0 > token.top[0].logprob >= token.top[1].logprob >= token.top[2].logprob


async def test_settings_do_not_change_what_is_reported(tiny: Path) -> None:
    """Temperature, filters and grammar choose; the probability that is told is the model's own."""
    async with running(tiny, flash_attention=False) as engine:
        greedy = said(await ask(engine, "tell", max_tokens=1, logprobs=20))
        drawn = said(await ask(engine, "tell", max_tokens=1, logprobs=20, temperature=5.0, top_k=2, seed=3))
        forced = said(await ask(engine, "tell", max_tokens=3, logprobs=20, json_schema={"enum": ["x"]}))
        none = said(await ask(engine, "tell", max_tokens=1, logprobs=0))
    for other in (drawn, none):
        assert [t.logprob for t in other[0].top] == pytest.approx(
            [t.logprob for t in greedy[0].top][: len(other[0].top)]
        )
    assert bytes(forced[0].bytes) == b'"'
    assert forced[0].logprob < forced[0].top[0].logprob
    assert [token.top for token in none] == [()]


def test_ranks_travel_as_latin_1() -> None:
    """Any bytes can be told in JSON."""
    reported = Reported(Pieces(b"\xff\x00"))
    text = TextStream()
    text.feed(b"a")
    reported.add([(0, -1.5)], text)
    assert reported.take(text) == [[Rank("\xff\x00", -1.5)]]
