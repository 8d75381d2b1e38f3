"""Chooses the next tokens: the settings of a generation become a chain of the library's samplers.

The order is llama.cpp's: bias and penalties (`LogitChanges`), `top_k`, `top_p`, `min_p`, temperature, then one draw.
Tokens that these samplers would discard are removed beforehand (`most_probable`, `nucleus`). Without a temperature
there is no draw. A grammar checks the chosen token only. When it refuses the token, the draw is repeated among the
candidates that it allows. This gives the same distribution as drawing until it accepts. When it allows no candidate,
the draw is among the allowed tokens of the whole vocabulary.
"""

import secrets
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.errors import CfsError, EngineError
from cfs.wire import Settings
from cfs_server.engine.worker.candidates import Candidates, Ids, Logits, most_probable, nucleus
from cfs_server.engine.worker.grammar import Constraint
from cfs_server.engine.worker.log_probabilities import Ranked, rank
from cfs_server.engine.worker.logit_changes import LogitChanges

_RANDOM_SEED = 0xFFFF_FFFF
"""The library reads this seed as "choose one", so it is replaced by its neighbour."""


_GREEDY_TRIES = 64
"""How many of the most probable tokens are tried with a grammar before all that it allows."""

PAYS_FROM = 300_000
"""Tokens that a step's samplers look at one by one: 3 ms of work, when the hand-over costs 0.1 ms (measured)."""
MOST_THREADS = 4
Choice = int | CfsError
"""The token of an output, or why there is none."""


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

    def forced(self) -> Sequence[int]:
        """Return the likely tokens of the text that a grammar forces next."""
        return self._grammar.forced() if self._grammar is not None else ()

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


@dataclass(frozen=True, slots=True)
class Draw:
    """The outputs of one turn: a row of logits, and one more for each token of its draft."""

    sampler: Sampler
    rows: Logits
    draft: Sequence[int] = ()


class SamplerPool:
    """Chooses tokens. A sampler belongs to one turn and a buffer to one thread, so nothing is shared.

    Native code runs without Python's lock; the tokens are the same with and without threads. `close` ends them.
    """

    def __init__(self, vocabulary: int, threads: int) -> None:
        self._vocabulary = vocabulary
        self._buffers = [Candidates(vocabulary)]
        self._helpers = min(threads, MOST_THREADS) - 1
        self._threads: ThreadPoolExecutor | None = None

    def choose(self, samplers: Sequence[Sampler], rows: Logits) -> list[Choice]:
        """Choose a token for each sampler from its row of logits."""
        draws = [Draw(sampler, rows[index : index + 1]) for index, sampler in enumerate(samplers)]
        return [choice for (choice,) in self.verify(draws)]

    def verify(self, draws: Sequence[Draw]) -> list[list[Choice]]:
        """Choose tokens for each sampler, for as long as its choices are the draft's: one at least."""
        if len(draws) < 2 or self._helpers < 1 or not self._pays(draws):
            return _verify(draws, self._buffers[0])
        if self._threads is None:
            self._buffers += [Candidates(self._vocabulary) for _ in range(self._helpers)]
            self._threads = ThreadPoolExecutor(self._helpers, "sampler")
        parts = range(min(len(draws), self._helpers + 1))
        step = len(parts)
        others = [self._threads.submit(_verify, draws[part::step], self._buffers[part]) for part in parts[1:]]
        choices: list[list[Choice]] = [[] for _ in draws]
        choices[0::step] = _verify(draws[0::step], self._buffers[0])
        for part, other in zip(parts[1:], others, strict=True):
            choices[part::step] = other.result()
        return choices

    def close(self) -> None:
        """End the threads, if there are any."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _pays(self, draws: Sequence[Draw]) -> bool:
        return sum(draw.sampler.weight(self._vocabulary) for draw in draws) >= PAYS_FROM


def _verify(draws: Sequence[Draw], buffer: Candidates) -> list[list[Choice]]:
    return [_tokens(draw, buffer) for draw in draws]


def _tokens(draw: Draw, buffer: Candidates) -> list[Choice]:
    choices: list[Choice] = []
    try:
        for row, guess in zip_longest(draw.rows, draw.draft):
            choices.append(draw.sampler.sample(row, buffer))
            if choices[-1] != guess:
                break
    except CfsError as error:
        choices.append(error)
    return choices
