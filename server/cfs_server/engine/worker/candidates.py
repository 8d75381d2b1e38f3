"""The tokens that can be chosen.

NumPy finds them. The library's samplers would copy and sort a vocabulary of 152,000 tokens.
"""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

Logits = NDArray[np.float32]


Ids = NDArray[np.int32]


LARGE = 16_384
"""Smaller vocabularies go into the buffer as they are: looking for the best would take longer (measured)."""


_ROWS = 64


_OFFSETS = np.arange(_ROWS)[:, None]


_FLOORS = (1e-3, 1e-6, 0.0)


_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """A buffer for the candidates of one token, with room for a whole vocabulary. For one thread at a time."""

    def __init__(self, size: int) -> None:
        self._all = np.arange(size, dtype=np.int32)
        data = np.zeros(size, dtype=_ENTRY)
        self._ids, self._logits = data["id"], data["logit"]
        pointer = ctypes.cast(data.ctypes.data, lib.llama_token_data_p)
        self._array = lib.llama_token_data_array(data=pointer, size=0, selected=-1, sorted=False)
        self._reference = ctypes.byref(self._array)
        self.scratch = np.empty(size, dtype=np.float32)

    def fill(self, logits: Logits, ids: Ids | None = None) -> None:
        """Take these tokens, or all of them."""
        size = len(logits) if ids is None else len(ids)
        self._ids[:size] = self._all if ids is None else ids
        self._logits[:size] = logits if ids is None else logits[ids]
        self._array.size, self._array.selected, self._array.sorted = size, -1, False

    def apply(self, sampler: Any) -> None:
        """Apply a native sampler: it drops, orders, masks or selects."""
        lib.llama_sampler_apply(sampler, self._reference)

    @property
    def selected(self) -> int:
        """The token that a sampler selected."""
        return int(self._ids[self._array.selected])

    @property
    def best(self) -> int:
        """The most probable token that is left."""
        return int(self._ids[self._logits[: self._array.size].argmax()])

    def keep(self, allowed: NDArray[np.bool_]) -> int:
        """Keep those that a table of all tokens marks, in their order; returns how many are left."""
        stays = allowed[self._ids[: self._array.size]]
        left = np.flatnonzero(stays)
        if len(left) < len(stays):
            self._ids[: len(left)], self._logits[: len(left)] = self._ids[left], self._logits[left]
            self._array.size, self._array.selected = len(left), -1
        return len(left)


def most_probable(logits: Logits, count: int) -> Ids | None:
    """Find the `count` most probable tokens, with those that are exactly as probable as the last; `None` for all.

    The vocabulary is laid out in columns. At least `count` tokens reach the `count`-th best of the columns' maxima, so
    each of the best tokens is in a column whose maximum reaches it.
    """
    width = len(logits) // _ROWS
    if len(logits) < LARGE or not 0 < count < width:
        return None
    whole = _ROWS * width
    best = logits[:whole].reshape(_ROWS, width).max(axis=0)
    floor = np.partition(best, width - count)[width - count]
    columns = np.flatnonzero(best >= floor)
    ids = (columns + _OFFSETS * width).ravel()
    if whole < len(logits):
        ids = np.concatenate([ids, np.arange(whole, len(logits))])
    result: Ids = ids[logits[ids] >= floor].astype(np.int32)
    return result


def nucleus(logits: Logits, top_p: float, min_p: float, scratch: Logits) -> Ids | None:
    """Find the tokens that `top_p` and then `min_p` keep of the whole vocabulary; `None` for all.

    Both cut the same order of tokens, so whichever cuts earlier decides, and one value parts those that stay from those
    that go. Sums are taken in double precision: against the library's, a near tie may fall to the other side.
    """
    if top_p >= 1 and min_p <= 0:
        return None
    peak = logits.max()
    if top_p >= 1:
        return np.flatnonzero(logits >= peak + np.log(np.float32(min_p))).astype(np.int32)
    shares = np.exp(np.subtract(logits, peak, out=scratch), out=scratch)
    target = top_p * float(shares.sum(dtype=np.float64))
    for floor in (min_p,) if min_p > 0 else _FLOORS:
        largest = np.sort(shares[shares >= floor])[::-1]
        reached = np.cumsum(largest, dtype=np.float64)
        if reached[-1] >= target:
            floor = largest[np.searchsorted(reached, target)]
            break
    return np.flatnonzero(shares >= floor).astype(np.int32)
