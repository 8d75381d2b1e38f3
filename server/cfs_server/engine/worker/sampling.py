"""Chooses the next token of one generation: settings become a chain of the library's samplers.

The order is llama.cpp's: bias and penalties (`LogitChanges`), `top_k`, `top_p`, `min_p`, temperature, then one draw.
Tokens that these samplers would discard are removed beforehand (`most_probable`, `nucleus`). Without a temperature
there is no draw. A grammar checks the chosen token only. When it refuses the token, the draw is repeated among the
candidates that it allows. This gives the same distribution as drawing until it accepts. When it allows no candidate,
the draw is among the allowed tokens of the whole vocabulary.
"""

import secrets
from collections import deque
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.errors import EngineError
from cfs.wire import Settings
from cfs_server.engine.worker.candidates import Candidates, Ids, Logits, most_probable, nucleus
from cfs_server.engine.worker.grammar import Constraint
from cfs_server.engine.worker.log_probabilities import Ranked, rank
from cfs_server.engine.worker.logit_changes import LogitChanges

_RANDOM_SEED = 0xFFFF_FFFF
"""The library reads this seed as "choose one", so it is replaced by its neighbour."""


_GREEDY_TRIES = 64
"""How many of the most probable tokens are tried with a grammar before all that it allows."""


class Sampler:
    """Samples for one generation; `free` it when the generation ends.

    None of the chain's samplers depends on earlier tokens, so `llama_sampler_accept` is never called
    (`llama_sampler_sample` would call it, even for a token that a grammar then refuses).
    """

    def __init__(
        self,
        settings: Settings,
        grammar: Constraint | None = None,
        logprobs: int | None = None,
        changes: LogitChanges | None = None,
    ) -> None:
        self._settings = settings
        self._grammar = grammar
        self._changes = changes
        self._logprobs = logprobs
        self.ranked: deque[Ranked] = deque()
        """Log-probabilities of the newest tokens, if they were requested, until they are taken."""
        self._draw: Any = None
        self._chain = self._make_chain() if settings.temperature > 0 else None

    def sample(self, logits: Logits, buffer: Candidates) -> int:
        """Choose a token; raises `EngineError` when the grammar allows none."""
        changed = logits if self._changes is None else self._changes.applied(logits)
        token = self._choose(changed, buffer)
        if self._grammar is not None:
            if not self._grammar.allows(token):
                token = self._choose_allowed(self._grammar, changed, buffer)
            self._grammar.accept(token)
        if self._changes is not None:
            self._changes.accept(token)
        if self._logprobs is not None:
            self.ranked.append(rank(logits, token, self._logprobs))
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
