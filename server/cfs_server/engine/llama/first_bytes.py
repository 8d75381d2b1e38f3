"""The tokens of a vocabulary by how they begin: a grammar that refuses a beginning refuses all that begin so.

A grammar is asked about the tokens of one byte, then, where only some of those may come, about those of two, and then
only the tokens behind what it allowed are left. Of 152,000 tokens that is some hundreds where a schema is strict.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cfs_server.engine.llama.candidates import Ids
from cfs_server.engine.llama.vocabulary import Vocabulary

FEW_BYTES = 16
"""Up to so many first bytes that are allowed, the second ones are asked for too; else there would be too many."""
FEW_TOKENS = 256
"""So few tokens are not worth asking for the second bytes."""
_END = 256
"""In place of the second byte of a token of one byte."""

Ask = Callable[[Ids], NDArray[np.bool_]]
"""Says which of some tokens a grammar allows."""


class FirstBytes:
    """An index of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        ends = [token for token in range(vocabulary.size) if vocabulary.ends(token)]
        self.ends = np.array(ends, dtype=np.int32)
        self.mute = np.array([not piece for piece in pieces])
        """Tokens that are no text and no end."""
        self.mute[ends] = False
        firsts = np.array([piece[0] if piece else -1 for piece in pieces])
        seconds = np.array([piece[1] if len(piece) > 1 else _END for piece in pieces])
        keys = np.where(firsts < 0, -1, firsts * (_END + 1) + seconds)
        self._tokens = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys = keys[self._tokens]
        self._starts = np.searchsorted(self._keys, np.arange(257) * (_END + 1))
        lengths = np.array([len(piece) for piece in pieces])
        self._singles = np.flatnonzero(lengths == 1).astype(np.int32)
        self._firsts = firsts
        pairs = np.flatnonzero(lengths == 2).astype(np.int32)
        self._pairs = [pairs[firsts[pairs] == byte] for byte in range(256)]
        self._key_of = keys

    def possible(self, ask: Ask) -> Ids:
        """List all tokens that a grammar may allow now, among some that it does not."""
        open_bytes = np.ones(256, dtype=bool)
        open_bytes[self._firsts[self._singles[~ask(self._singles)]]] = False
        groups = [self._group(int(byte)) for byte in np.flatnonzero(open_bytes)]
        found = np.concatenate([self.ends, *(self._tokens[group] for group in groups)])
        if len(groups) > FEW_BYTES or len(found) <= FEW_TOKENS:
            return found
        pairs = np.concatenate([self._pairs[byte] for byte in np.flatnonzero(open_bytes)])
        refused = np.zeros(256 * (_END + 1), dtype=bool)
        refused[self._key_of[pairs[~ask(pairs)]]] = True
        return np.concatenate([self.ends, *(self._tokens[group][~refused[self._keys[group]]] for group in groups)])

    def _group(self, byte: int) -> slice:
        """Find the tokens that begin with a byte."""
        return slice(int(self._starts[byte]), int(self._starts[byte + 1]))
