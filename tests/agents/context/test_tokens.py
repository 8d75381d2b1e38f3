"""Texts are counted once, by what can count them; without that, they are estimated (A7)."""

from collections.abc import Sequence

import pytest

from cfs.errors import Unreachable
from cfs_agents.context import CachedCounter, EstimatingCounter
from cfs_agents.context.tokens import estimate


class Words:
    """Counts words, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.there = True

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Count the words of each text."""
        if not self.there:
            raise Unreachable("no tokenizer")
        self.asked.append(list(texts))
        return [len(text.split()) for text in texts]


async def test_a_text_is_counted_once() -> None:
    """What is known is not asked again, what is new in one call, and a text that stands there twice once."""
    words = Words()
    counter = CachedCounter(words)
    assert await counter.count(["a b", "a", "a b"]) == [2, 1, 2]
    assert await counter.count(["a", "a b c", "a b"]) == [1, 3, 2]
    assert words.asked == [["a b", "a"], ["a b c"]]


async def test_what_was_not_used_for_longest_is_forgotten() -> None:
    """The cache has a size."""
    words = Words()
    counter = CachedCounter(words, size=2)
    for texts in (["a"], ["b"], ["a"], ["c"], ["a"], ["b"]):
        await counter.count(texts)
    assert words.asked == [["a"], ["b"], ["c"], ["b"]]


async def test_without_a_tokenizer_there_is_a_guess_that_is_not_kept() -> None:
    """What was counted before stays true, and when the tokenizer is back it is asked again."""
    words = Words()
    counter = CachedCounter(words)
    await counter.count(["one two three"])
    words.there = False
    assert await counter.count(["one two three", "x" * 400]) == [3, 100]
    words.there = True
    assert await counter.count(["x" * 400]) == [1]


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("中文", 2), ("ab中", 2)])
async def test_the_guess(text: str, tokens: int) -> None:
    """Four ASCII characters a token, rounded up, and one for each other character."""
    assert estimate(text) == tokens
    assert await EstimatingCounter().count([text]) == [tokens]


async def test_half_a_character_can_be_counted() -> None:
    """Lone surrogates come out of broken decoders."""
    assert await CachedCounter(EstimatingCounter()).count(["a\ud800"]) == [2]
