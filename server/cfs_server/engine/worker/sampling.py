"""Chooses the next token of one generation: settings become a chain of the library's samplers.

The order is llama.cpp's: `top_k`, `top_p`, `min_p`, temperature, then one draw. Tokens that these samplers would
discard are removed beforehand (`most_probable`, `nucleus`). Without a temperature there is no draw. A grammar checks
the chosen token only. When it refuses the token, the draw is repeated among the candidates that it allows. This gives
the same distribution as drawing until it accepts. When it allows no candidate, the draw is among the allowed tokens of
the whole vocabulary.
"""

import ctypes
import secrets
from collections import deque
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs.errors import EngineError
from cfs.wire import Settings
from cfs_server.engine.contract.protocol import Rank
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.grammar import Constraint
from cfs_server.engine.worker.text import TextStream

# -- candidates: the tokens that can be chosen ------------------------------------------------------------------------
#
# NumPy finds them. The library's samplers would copy and sort a vocabulary of 152,000 tokens.

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
    found: Ids = ids[logits[ids] >= floor].astype(np.int32)
    return found


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
    wanted = top_p * float(shares.sum(dtype=np.float64))
    for floor in (min_p,) if min_p > 0 else _FLOORS:
        largest = np.sort(shares[shares >= floor])[::-1]
        reached = np.cumsum(largest, dtype=np.float64)
        if reached[-1] >= wanted:
            floor = largest[np.searchsorted(reached, wanted)]
            break
    return np.flatnonzero(shares >= floor).astype(np.int32)


# -- log-probabilities of the chosen tokens, for turns that request them ----------------------------------------------
#
# They are the model's own, as in other servers: before temperature, `top_k`, `top_p`, `min_p` and grammar.

NEVER = -9999.0
"""Represents minus infinity, which JSON does not have."""

Ranked = list[tuple[int, float]]
"""Tokens and their log-probabilities: the one that was chosen, then the most probable ones in their order."""


def rank(logits: Logits, token: int, count: int) -> Ranked:
    """Compute the log-probabilities of a token and of the `count` most probable ones."""
    exact = logits.astype(np.float64)
    total = np.log(np.exp(exact - exact.max()).sum()) + exact.max()
    found = most_probable(logits, count)
    best = np.arange(len(logits), dtype=np.int32) if found is None else found
    best = best[np.argsort(-exact[best], kind="stable")][:count]
    return [(number, max(float(exact[number] - total), NEVER)) for number in (token, *best.tolist())]


class Reported:
    """Holds the log-probabilities of tokens until the text of those tokens is shown."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[tuple[int, int, list[Rank]]] = deque()
        self._fed = 0

    def add(self, ranked: Ranked, text: TextStream) -> None:
        """Note a token that was fed to the text last."""
        ranks = [Rank(self._vocabulary.piece(token).decode("latin-1"), value) for token, value in ranked]
        self._waiting.append((self._fed, text.needed, ranks))
        self._fed = text.needed

    def take(self, text: TextStream) -> list[list[Rank]]:
        """Return those of the shown tokens; at the end also of a token that is shown in part.

        Tokens removed by a stop string or as white space after a reply are not reported.
        """
        taken = []
        while self._waiting:
            start, end, ranks = self._waiting[0]
            if end > text.settled and not (text.stopped and start < text.settled):
                break
            taken.append(ranks)
            self._waiting.popleft()
        return taken


_RANDOM_SEED = 0xFFFF_FFFF
"""The library reads this seed as "choose one", so it is replaced by its neighbour."""
_GREEDY_TRIES = 64
"""How many of the most probable tokens are tried with a grammar before all that it allows."""


class Sampler:
    """Samples for one generation; `free` it when the generation ends.

    None of the chain's samplers depends on earlier tokens, so `llama_sampler_accept` is never called
    (`llama_sampler_sample` would call it, even for a token that a grammar then refuses).
    """

    def __init__(self, settings: Settings, grammar: Constraint | None = None, logprobs: int | None = None) -> None:
        self._settings = settings
        self._grammar = grammar
        self._logprobs = logprobs
        self.ranked: Ranked | None = None
        """Log-probabilities of the newest token, if they were requested."""
        self._draw: Any = None
        self._chain = self._make_chain() if settings.temperature > 0 else None

    def sample(self, logits: Logits, buffer: Candidates) -> int:
        """Choose a token; raises `EngineError` when the grammar allows none."""
        token = self._choose(logits, buffer)
        if self._grammar is not None:
            if not self._grammar.allows(token):
                token = self._choose_allowed(self._grammar, logits, buffer)
            self._grammar.accept(token)
        if self._logprobs is not None:
            self.ranked = rank(logits, token, self._logprobs)
        return token

    def weight(self, vocabulary: int) -> int:
        """The number of tokens examined one by one, for a vocabulary of this size: the slow part of a choice."""
        wide = self._chain is not None and not self._settings.top_k
        return vocabulary if wide or self._logprobs is not None else 0

    def free(self) -> None:
        """Release the native samplers; calling it twice is harmless."""
        if self._chain is not None:
            lib.llama_sampler_free(self._chain)
        if self._grammar is not None:
            self._grammar.free()
        self._chain = self._grammar = self._draw = None

    def _choose(self, logits: Logits, buffer: Candidates) -> int:
        if self._chain is None:
            return int(logits.argmax())
        buffer.fill(logits, self._narrow(logits, buffer))
        buffer.apply(self._chain)
        return buffer.selected

    def _choose_allowed(self, grammar: Constraint, logits: Logits, buffer: Candidates) -> int:
        """Choose again among the tokens that the grammar allows: of the candidates, or else of the vocabulary."""
        if self._chain is None:
            buffer.fill(logits, most_probable(logits, _GREEDY_TRIES))
        mask = grammar.mask()
        if buffer.keep(mask):
            return self._pick(buffer)
        allowed = np.flatnonzero(mask).astype(np.int32)
        if not len(allowed):
            raise EngineError("the grammar allows no token of this model's vocabulary here")
        if self._chain is None:
            return int(allowed[logits[allowed].argmax()])
        narrowed = self._narrow(logits[allowed], buffer)
        buffer.fill(logits, allowed if narrowed is None else allowed[narrowed])
        buffer.apply(self._chain)
        return buffer.selected

    def _pick(self, buffer: Candidates) -> int:
        """Choose among candidates that the chain has ordered, cut and scaled before."""
        if self._chain is None:
            return buffer.best
        buffer.apply(self._draw)
        return buffer.selected

    def _narrow(self, logits: Logits, buffer: Candidates) -> Ids | None:
        settings = self._settings
        if settings.top_k:
            return most_probable(logits, settings.top_k)
        return nucleus(logits, settings.top_p, settings.min_p, buffer.scratch[: len(logits)])

    def _make_chain(self) -> Any:
        params = lib.llama_sampler_chain_default_params()
        params.no_perf = True
        chain = lib.llama_sampler_chain_init(params)
        settings = self._settings
        if settings.top_k:  # else `nucleus` has done the work of these three
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(settings.top_k))
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_p(settings.top_p, 1))
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_min_p(settings.min_p, 1))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(settings.temperature))
        seed = secrets.randbits(32) if settings.seed is None else settings.seed
        self._draw = lib.llama_sampler_init_dist(min(seed, _RANDOM_SEED - 1))
        lib.llama_sampler_chain_add(chain, self._draw)
        return chain
