"""The kind of a model's state, and the plan of its pool.

Attention keeps an entry for each token, so any run of tokens can be dropped, shared and saved (a tree of ranges).
Recurrent layers keep one sum of all tokens, so only whole states can be saved (snapshots). Layers with a sliding
window need only the last tokens. The library then overwrites the cells before the window, so a range is safe only in
a pool that keeps and protects the full window (`ffi.LlamaContext`).
"""

from dataclasses import dataclass
from typing import Any, Literal

from llama_cpp import llama_cpp as lib

from cfs_server.engine.contract.interface import EnginePlan, KvType, ModelLoadError
from cfs_server.engine.contract.protocol import WorkerOptions

Name = Literal["attention", "sliding window", "recurrent", "hybrid"]


@dataclass(frozen=True, slots=True)
class NumberType:
    """The library's number of a type, and how many numbers share a scale."""

    number: int
    block: int


KV_TYPES: dict[KvType, NumberType] = {
    "f16": NumberType(lib.GGML_TYPE_F16, 1),
    "q8_0": NumberType(lib.GGML_TYPE_Q8_0, 32),
    "q4_0": NumberType(lib.GGML_TYPE_Q4_0, 32),
}


def set_kv_type(params: Any, options: WorkerOptions) -> None:
    """Set the type of keys and values, and flash attention, in the parameters of a context."""
    flash, plain = lib.LLAMA_FLASH_ATTN_TYPE_AUTO, lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.flash_attn_type = flash if options.flash_attention else plain
    params.type_k = params.type_v = KV_TYPES[options.kv_type].number


def check_kv_type(path: str, options: WorkerOptions, name: Name, heads: tuple[int, int]) -> None:
    """Raise `ModelLoadError` for a type that a model with keys and values of these sizes cannot have."""
    block, problem = KV_TYPES[options.kv_type].block, f"{path}: --kv-type {options.kv_type} cannot be used"
    if block == 1:
        return
    if name == "recurrent":
        raise ModelLoadError(f"{problem}: this model has no attention; use f16")
    if not options.flash_attention:
        raise ModelLoadError(f"{problem} without flash attention; use f16")
    if size := next((size for size in heads if size % block), 0):
        raise ModelLoadError(f"{problem}: this model's heads have {size} numbers, no multiple of {block}; use f16")


LEAST_TOKENS = 4096
"""A pool is never smaller than this, if the model's context is not."""


LEAST_BYTES, MOST_BYTES = 128 << 20, 1 << 30
"""The pool of a small model: at least this, and at most, however long its context is."""


@dataclass(frozen=True, slots=True)
class ModelArchitecture:
    """The properties of a model from the library and from tests.

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
class StatePlan:
    """How the state of an architecture is kept on this machine."""

    architecture: ModelArchitecture
    context_tokens: int
    pool_tokens: int
    ranges: bool
    full_window: bool
    sequences: int

    @property
    def pool_bytes(self) -> int:
        """Memory of the pool, about."""
        architecture = self.architecture
        cell = architecture.cell_bytes - (0 if self.full_window else architecture.window_bytes)
        window = 0 if self.full_window else architecture.window * architecture.window_bytes
        return self.pool_tokens * cell + self.sequences * (window + architecture.state_bytes)

    def describe(self, options: WorkerOptions, *, flash_attention: bool, extra_buffers: bool) -> EnginePlan:
        """Describe the chosen settings."""
        architecture, window = self.architecture, "none"
        if architecture.window:
            why = "kept in full" if self.full_window else "only the window is kept: " + self._why_no_full_window()
            window = f"{architecture.window} tokens, {why}"
        return EnginePlan(
            family=architecture.name,
            policy="ranges" if self.ranges else "snapshots",
            window=window,
            flash_attention=flash_attention,
            pool_tokens=self.pool_tokens,
            pool_bytes=self.pool_bytes,
            parallel=options.parallel,
            threads=options.threads,
            extra_buffers=extra_buffers,
            kv_type=options.kv_type,
        )

    def _why_no_full_window(self) -> str:
        return "a whole context would not fit" if self.architecture.parts else "its state has no parts"


def make_plan(architecture: ModelArchitecture, options: WorkerOptions, trained_tokens: int, budget: int) -> StatePlan:
    """Choose; `budget` is the memory that the pool may take unless its size is given, in bytes."""
    context = min(options.context_tokens or trained_tokens, trained_tokens)
    whole_context_fits = (options.pool_tokens or context) * architecture.cell_bytes <= budget
    full_window = architecture.parts and architecture.window > 0 and whole_context_fits
    ranges = architecture.parts and (not architecture.window or full_window)
    cell = architecture.cell_bytes - (0 if ranges else architecture.window_bytes)
    affordable = budget // cell if cell else context * options.parallel
    return StatePlan(
        architecture=architecture,
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
