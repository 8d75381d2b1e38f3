"""What a model's state is like, and what follows from that: how it is kept, and how large the pool is.

Attention keeps an entry for each token: any run of tokens can be dropped, shared and saved (a tree of ranges).
Recurrent layers keep a sum of all that was, so only whole states can be kept (snapshots). Layers with a sliding window
need but the last tokens; then the library overwrites what lies before the window, and a range of it is only safe in a
pool that keeps the window in full and guards it (`ffi.Context`).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs_server.engine.frames import Options
from cfs_server.engine.interface import EnginePlan
from cfs_server.engine.llama.ffi import Batch, Context, Outcome

Name = Literal["attention", "sliding window", "recurrent", "hybrid"]
LEAST_TOKENS = 4096
"""A pool is never smaller than this, if the model's context is not."""
_TOKENS = 3
_TOLERANCE = 0.02
"""Restored state may give logits that differ by so much of the largest."""


@dataclass(frozen=True, slots=True)
class Family:
    """What the library says of a model, and what was tried with it.

    `parts`: a run of tokens was dropped, shared, saved and restored, and the logits were the same. `window` is in
    tokens, 0 for none; `cell_bytes` are those of one token in all layers, `window_bytes` those of them in layers with
    a window; `state_bytes` are those of a sequence however long it is.
    """

    name: Name
    parts: bool
    window: int
    cell_bytes: int
    window_bytes: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How the state of a family is kept on this machine."""

    family: Family
    context_tokens: int
    pool_tokens: int
    ranges: bool
    full_window: bool
    sequences: int

    @property
    def pool_bytes(self) -> int:
        """Memory of the pool, about."""
        family = self.family
        cell = family.cell_bytes - (0 if self.full_window else family.window_bytes)
        window = 0 if self.full_window else family.window * family.window_bytes
        return self.pool_tokens * cell + self.sequences * (window + family.state_bytes)

    def describe(self, options: Options, *, flash_attention: bool, extra_buffers: bool) -> EnginePlan:
        """Say what was chosen."""
        family, window = self.family, "none"
        if family.window:
            why = "kept in full" if self.full_window else "only the window is kept: " + self._why_no_full_window()
            window = f"{family.window} tokens, {why}"
        return EnginePlan(
            family=family.name,
            policy="ranges" if self.ranges else "snapshots",
            window=window,
            flash_attention=flash_attention,
            pool_tokens=self.pool_tokens,
            pool_bytes=self.pool_bytes,
            parallel=options.parallel,
            threads=options.threads,
            extra_buffers=extra_buffers,
        )

    def _why_no_full_window(self) -> str:
        return "a whole context would not fit" if self.family.parts else "its state has no parts"


def make_plan(family: Family, options: Options, trained_tokens: int, budget: int) -> Plan:
    """Choose; `budget` is the memory that the pool may take unless its size is given, in bytes."""
    context = min(options.context_tokens or trained_tokens, trained_tokens)
    whole_context_fits = (options.pool_tokens or context) * family.cell_bytes <= budget
    full_window = family.parts and family.window > 0 and whole_context_fits
    ranges = family.parts and (not family.window or full_window)
    cell = family.cell_bytes - (0 if ranges else family.window_bytes)
    affordable = budget // cell if cell else context * options.parallel
    return Plan(
        family=family,
        context_tokens=context,
        pool_tokens=options.pool_tokens or max(min(context * options.parallel, affordable), min(context, LEAST_TOKENS)),
        ranges=ranges,
        full_window=full_window,
        sequences=_sequences(options.parallel, ranges=ranges, guarded=full_window),
    )


def _sequences(parallel: int, *, ranges: bool, guarded: bool) -> int:
    """Ids for running and briefly idle sequences: whole states cost memory for each, ranges do not."""
    if not ranges:
        return parallel + 1
    return min(max(64, 4 * parallel), int(lib.llama_max_parallel_sequences()) // (2 if guarded else 1))


def name_of(model: Any) -> Name:
    """Say what the library knows of a model, loaded with or without its weights."""
    if lib.llama_model_is_recurrent(model):
        return "recurrent"
    if lib.llama_model_is_hybrid(model):
        return "hybrid"
    return "sliding window" if lib.llama_model_n_swa(model) else "attention"


def examine(model: Any, context: Context) -> Family:
    """Try a few tokens in a small context, which is empty before and after; raises `ArithmeticError`."""
    window = int(lib.llama_model_n_swa(model))
    before = _decode(context, 0, 0, _TOKENS)[1]
    logits, size = _decode(context, 0, _TOKENS, 1)
    cell_bytes = size - before
    window_bytes = _window_bytes(context) if window else 0
    parts = _has_parts(context, logits)
    for sequence in range(context.sequences):
        context.clear(sequence)
    return Family(
        name=name_of(model),
        parts=parts,
        window=window,
        cell_bytes=cell_bytes,
        window_bytes=min(window_bytes, cell_bytes),
        state_bytes=max(0, size - (_TOKENS + 1) * cell_bytes),
    )


def _has_parts(context: Context, wanted: "np.ndarray[Any, np.dtype[np.float32]]") -> bool:
    """Drop the last token, move the others through the scratch sequence, and compute the last again elsewhere."""
    if not context.truncate(0, _TOKENS):
        return False
    context.share(0, 2, 0, _TOKENS)
    state = context.save(2)
    context.clear(0)
    context.clear(2)
    if not context.restore(2, state):
        return False
    context.share(2, 1, 0, _TOKENS)
    context.clear(2)
    again, _ = _decode(context, 1, _TOKENS, 1)
    return bool(np.abs(again - wanted).max() <= _TOLERANCE * np.abs(wanted).max())


def _decode(context: Context, sequence: int, start: int, count: int) -> "tuple[np.ndarray[Any, Any], int]":
    """Compute some tokens; returns the logits after the last, and the bytes of the sequence's state."""
    batch = Batch(count)
    index = batch.add(sequence, list(range(start, start + count)), start, output=True)
    if context.decode(batch) is not Outcome.DONE:
        raise ArithmeticError("the model cannot compute")
    vocabulary = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(context.model)))
    return context.logits(index, vocabulary).copy(), context.save(sequence).nbytes


def _window_bytes(context: Context) -> int:
    """Bytes of one token in the layers that have a window: the library can save these alone."""
    size = int(lib.llama_state_seq_get_size_ext(context.raw, 0, lib.LLAMA_STATE_SEQ_FLAGS_SWA_ONLY))
    return size // (_TOKENS + 1)
