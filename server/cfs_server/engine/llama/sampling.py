"""Chooses the next token of one generation: settings become a chain of the library's samplers.

`top_k` comes first: the samplers behind it then sort forty candidates instead of the whole vocabulary. A grammar is
asked about the one token that was chosen; only when it refuses is the whole vocabulary masked and chosen from again
(as llama.cpp's own programs do).
"""

import ctypes
import secrets
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs.errors import EngineError, SchemaRefused
from cfs.wire import Settings
from cfs_server.engine.gbnf.schemas import grammar as write_grammar
from cfs_server.engine.llama.ffi import Context
from cfs_server.engine.llama.vocabulary import Vocabulary

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_RANDOM_SEED = 0xFFFF_FFFF
"""The library reads this one seed as "choose one"; whoever asks for it gets its neighbour."""


class Sampler:
    """Samples for one generation; `free` it when the generation ends."""

    def __init__(self, vocabulary: Vocabulary, settings: Settings, json_schema: dict[str, Any] | None) -> None:
        self._grammar = _grammar(vocabulary, json_schema) if json_schema is not None else None
        self._chain = _chain(settings)
        self._size = vocabulary.size

    def sample(self, context: Context, index: int) -> int:
        """Choose a token from the logits at `index` of the last batch."""
        token = int(lib.llama_sampler_sample(self._chain, context.raw, index))
        if self._grammar is None:
            return token
        if not self._allowed(token):
            token = self._sample_allowed(context, index)
        lib.llama_sampler_accept(self._grammar, token)
        return token

    def free(self) -> None:
        """Release the native samplers; calling it twice is harmless."""
        for sampler in (self._chain, self._grammar):
            if sampler is not None:
                lib.llama_sampler_free(sampler)
        self._chain = self._grammar = None

    def _allowed(self, token: int) -> bool:
        candidate = np.zeros(1, dtype=_CANDIDATE)
        candidate["id"] = token
        _apply(self._grammar, candidate)
        return bool(np.isfinite(candidate["logit"][0]))

    def _sample_allowed(self, context: Context, index: int) -> int:
        candidates = np.zeros(self._size, dtype=_CANDIDATE)
        candidates["id"] = np.arange(self._size)
        candidates["logit"] = context.logits(index, self._size)
        _apply(self._grammar, candidates)
        allowed = candidates[np.isfinite(candidates["logit"])]
        if not len(allowed):
            raise EngineError("the grammar allows no token of this model's vocabulary here")
        return _apply(self._chain, allowed)


def _apply(sampler: Any, candidates: NDArray[np.void]) -> int:
    """Apply a sampler in place and return the token that it selected (-1: none)."""
    array = lib.llama_token_data_array(
        data=ctypes.cast(candidates.ctypes.data, lib.llama_token_data_p),
        size=len(candidates),
        selected=-1,
        sorted=False,
    )
    lib.llama_sampler_apply(sampler, ctypes.byref(array))
    # A sampler may point the array at its own, shorter list: the index counts in that one.
    return int(array.data[array.selected].id) if array.selected >= 0 else -1


def _chain(settings: Settings) -> Any:
    params = lib.llama_sampler_chain_default_params()
    params.no_perf = True
    chain = lib.llama_sampler_chain_init(params)
    for sampler in _samplers(settings):
        lib.llama_sampler_chain_add(chain, sampler)
    return chain


def _samplers(settings: Settings) -> list[Any]:
    if settings.temperature == 0:
        return [lib.llama_sampler_init_greedy()]
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    return [
        lib.llama_sampler_init_top_k(settings.top_k),
        lib.llama_sampler_init_top_p(settings.top_p, 1),
        lib.llama_sampler_init_min_p(settings.min_p, 1),
        lib.llama_sampler_init_temp(settings.temperature),
        lib.llama_sampler_init_dist(min(seed, _RANDOM_SEED - 1)),
    ]


def _grammar(vocabulary: Vocabulary, schema: dict[str, Any]) -> Any:
    try:
        text = write_grammar(schema).text.encode()
    except ValueError as error:
        raise SchemaRefused(f"the JSON schema cannot be made a grammar: {error}") from error
    grammar = lib.llama_sampler_init_grammar(vocabulary.raw, text, b"root")
    if not grammar:
        raise SchemaRefused("the JSON schema cannot be made a grammar: the library refuses the result")
    return grammar
