"""Counts the tokens of texts: by estimate, or by a counter whose results are cached."""

import hashlib
from collections.abc import Sequence
from typing import Protocol

from cachetools import LRUCache

from cfs.errors import CfsError


class TokenCounter(Protocol):
    """Counts the tokens of texts, with the model's tokenizer or through a server."""

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, in their order."""
        ...


def estimate(text: str) -> int:
    """Estimate the tokens of a text: four ASCII characters are one token, any other character is one token.

    This is accurate for English prose. It is up to twice too high for other languages, and half of the true number for
    code in rare notations, hexadecimal digits and base64.
    """
    ascii_characters = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return -(-ascii_characters // 4) + len(text) - ascii_characters


class EstimatingCounter:
    """Estimates without a tokenizer (see `estimate`)."""

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return an estimate for each text."""
        return [estimate(text) for text in texts]


class CachedCounter:
    """An LRU cache of another counter's results for `size` texts. All new texts go to the counter in one call.

    The keys are hashes of the texts. If the counter raises a `CfsError` (for example, an unreachable server), the
    result is an estimate, which is not cached.
    """

    def __init__(self, counter: TokenCounter, *, size: int = 10_000) -> None:
        self._counter = counter
        self._known: LRUCache[bytes, int] = LRUCache(size)

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, in their order."""
        keys = [_hash(text) for text in texts]
        counts = {key: self._known[key] for key in keys if key in self._known}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in counts}
        if new:
            try:
                counted = dict(zip(new, await self._counter.count(list(new.values())), strict=True))
            except CfsError:
                return [counts[key] if key in counts else estimate(new[key]) for key in keys]
            counts |= counted
        self._known.update(counts)
        return [counts[key] for key in keys]


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
