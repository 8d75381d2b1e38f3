"""Chooses the next token of one generation: settings become a chain of the library's samplers.

The order is llama.cpp's: `top_k`, `top_p`, `min_p`, temperature, then one draw. What the chain would only throw away
does not get into it (`candidates`), and without a temperature there is nothing to draw. A grammar is asked about the
one token that was chosen. When it refuses, the draw is made again among the candidates that it allows, which is what
drawing until it agrees would come to; when it allows none of them, among the allowed tokens of the whole vocabulary.
"""

import secrets
from collections import deque
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.errors import EngineError
from cfs.wire import Settings
from cfs_server.engine.llama.candidates import Candidates, Ids, Logits, most_probable, nucleus
from cfs_server.engine.llama.grammar import Constraint
from cfs_server.engine.llama.text import TextStream
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.protocol import Rank

# Log-probabilities of the tokens that were chosen, for those who ask.
#
# They are the model's own: of the logits as they come, before temperature, `top_k`, `top_p`, `min_p` and grammar, as
# other servers report them too.

NEVER = -9999.0
"""Stands for the logarithm of nothing, which JSON cannot say."""

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
        """Return those of tokens that are shown; at the end also of the one that is shown in part.

        What a stop string or the white space behind a reply takes with it is not reported.
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
"""The library reads this one seed as "choose one"; whoever asks for it gets its neighbour."""
_GREEDY_TRIES = 64
"""Of the most probable tokens, so many are shown to a grammar before it is asked about the vocabulary."""


class Sampler:
    """Samples for one generation; `free` it when the generation ends.

    None of the chain's samplers learns from the tokens that were chosen, so it is never told (`llama_sampler_sample`
    would do it unasked, also for a token that a grammar then refuses).
    """

    def __init__(self, settings: Settings, grammar: Constraint | None = None, logprobs: int | None = None) -> None:
        self._settings = settings
        self._grammar = grammar
        self._logprobs = logprobs
        self.ranked: Ranked | None = None
        """Log-probabilities that belong to the newest token, if they were asked for."""
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
        """Tokens that are looked at one by one, for a vocabulary of this size: what makes a choice slow."""
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
        """Choose again among what the grammar allows: of the candidates, or else of the vocabulary."""
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
