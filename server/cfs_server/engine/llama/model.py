"""Loads a model and its context, and reduces the library's many lines about a failure to one."""

import ctypes
import os
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs_server.engine.contract.interface import EnginePlan, ModelLoadError
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.llama.cost_model import TILE
from cfs_server.engine.llama.embedding import Pooling, attends_both_ways
from cfs_server.engine.llama.ffi import AbortFlag, DecodeResult, LlamaContext, NativeLog, TokenBatch
from cfs_server.engine.llama.model_plan import (
    LEAST_BYTES,
    MOST_BYTES,
    ModelArchitecture,
    Name,
    StatePlan,
    check_kv_type,
    make_plan,
    set_kv_type,
)
from cfs_server.engine.llama.tokenizer import Vocabulary

_TOKENS = 3
_TOLERANCE = 0.02
"""Restored state may give logits that differ by so much of the largest."""


def name_of(model: Any) -> Name:
    """Return the library's description of a model, loaded with or without its weights."""
    if lib.llama_model_is_recurrent(model):
        return "recurrent"
    if lib.llama_model_is_hybrid(model):
        return "hybrid"
    return "sliding window" if lib.llama_model_n_swa(model) else "attention"


def examine(model: Any, context: LlamaContext) -> ModelArchitecture:
    """Try a few tokens in a small context, which is empty before and after; raises `ArithmeticError`."""
    window = int(lib.llama_model_n_swa(model))
    before = _decode(context, 0, 0, _TOKENS)[1]
    logits, size = _decode(context, 0, _TOKENS, 1)
    cell_bytes = size - before
    window_bytes = _window_bytes(context) if window else 0
    parts = _has_parts(context, logits)
    for sequence in range(context.sequences):
        context.clear(sequence)
    return ModelArchitecture(
        name=name_of(model),
        parts=parts,
        window=window,
        cell_bytes=cell_bytes,
        window_bytes=min(window_bytes, cell_bytes),
        state_bytes=max(0, size - (_TOKENS + 1) * cell_bytes),
    )


def _has_parts(context: LlamaContext, expected: "np.ndarray[Any, np.dtype[np.float32]]") -> bool:
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
    return bool(np.abs(again - expected).max() <= _TOLERANCE * np.abs(expected).max())


def _decode(context: LlamaContext, sequence: int, start: int, count: int) -> "tuple[np.ndarray[Any, Any], int]":
    """Compute some tokens; returns the logits after the last, and the bytes of the sequence's state."""
    batch = TokenBatch(count)
    index = batch.add(sequence, list(range(start, start + count)), start, output=True)
    if context.decode(batch) is not DecodeResult.DONE:
        raise ArithmeticError("the model cannot compute")
    vocabulary = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(context.model)))
    return context.logits(index, vocabulary).copy(), context.save(sequence).nbytes


def _window_bytes(context: LlamaContext) -> int:
    """Bytes of one token in the layers that have a window: the library can save these alone."""
    size = int(lib.llama_state_seq_get_size_ext(context.raw, 0, lib.LLAMA_STATE_SEQ_FLAGS_SWA_ONLY))
    return size // (_TOKENS + 1)


SMALL_PARAMETERS = 50_000_000
_MOST_TEXT = 1024
_EXAMINED_TOKENS, _EXAMINED_BATCH = 256, 8
"""Sizes of the context in which a model is examined."""
_COMPARED_BATCHES = (2, 5)
"""Tokens of the batches that are compared with single ones: fewer and more than the rows that kernels take at once."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to compute."""

    path: str
    raw: Any
    context: LlamaContext
    vocabulary: Vocabulary
    template: str | None
    parameters: int
    context_tokens: int
    options: WorkerOptions
    plan: EnginePlan
    log: NativeLog  # kept as long as the model: the library calls back into it
    pooling: Pooling | None = None
    rounds_alike: bool = False
    """Whether a batch of guesses is computed to the same bits as one token at a time; looked at for `auto` only."""


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """A model that is ready to make embeddings, and makes nothing else."""

    raw: Any
    vocabulary: Vocabulary
    parameters: int
    context_tokens: int
    options: WorkerOptions
    log: NativeLog
    pooling: Pooling


def load(path: str, options: WorkerOptions, log: NativeLog, *, extra_buffers: bool) -> LoadedModel:
    """Load a model that makes texts; raises `ModelLoadError` with one line."""
    model = load_any(path, options, log, extra_buffers=extra_buffers)
    if isinstance(model, LoadedEncoder):
        raise ModelLoadError(f"{path}: not a text generation model")
    return model


def load_any(path: str, options: WorkerOptions, log: NativeLog, *, extra_buffers: bool) -> LoadedModel | LoadedEncoder:
    """Load the file at `path`; raises `ModelLoadError` with one line."""
    lib.llama_backend_init()
    model = load_weights(path, log, extra_buffers=extra_buffers)
    trained, pooling = int(lib.llama_model_n_ctx_train(model)), Pooling.of(model)
    whole = attends_both_ways(model)
    if not lib.llama_model_has_decoder(model) or not trained or (whole and pooling is None):
        kind = "text generation or embedding model" if whole else "text generation model"
        raise ModelLoadError(f"{path}: not a {kind}")
    if not whole:
        check_kv_type(path, options, name_of(model), _head_sizes(model))
    options = replace(
        options,
        parallel=min(options.parallel, int(lib.llama_max_parallel_sequences())),
        threads=options.threads or _threads(model),
    )
    if pooling is not None and pooling.whole:
        return LoadedEncoder(
            raw=model,
            vocabulary=Vocabulary(model),
            parameters=int(lib.llama_model_n_params(model)),
            context_tokens=min(options.context_tokens or trained, trained),
            options=options,
            log=log,
            pooling=pooling,
        )
    architecture = _examine(path, model, options, log)
    full_context = min(options.context_tokens or trained, trained) * architecture.cell_bytes
    budget = budget_of(options, _memory(), int(lib.llama_model_size(model)), full_context)
    plan = make_plan(architecture, options, trained, budget)
    options = replace(
        options,
        context_tokens=plan.context_tokens,
        pool_tokens=plan.pool_tokens,
        step_tokens=max(options.step_tokens, options.parallel, TILE),
    )
    context = _main_context(path, model, options, plan, log)
    vocabulary = Vocabulary(model)
    template = lib.llama_model_chat_template(model, None)
    return LoadedModel(
        path=path,
        raw=model,
        context=context,
        vocabulary=vocabulary,
        template=template.decode(errors="replace") if template else None,
        parameters=int(lib.llama_model_n_params(model)),
        context_tokens=min(options.context_tokens, context.cells),
        options=options,
        plan=plan.describe(
            options,
            flash_attention=options.flash_attention and not log.no_flash_attention,
            extra_buffers=extra_buffers,
        ),
        log=log,
        pooling=pooling,
        rounds_alike=options.speculation == "auto" and plan.ranges and _rounds_alike(context, vocabulary.size),
    )


def load_weights(path: str, log: NativeLog, *, extra_buffers: bool, header_only: bool = False) -> Any:
    """Load the weights alone, or only the file's metadata."""
    params = lib.llama_model_default_params()
    params.use_extra_bufts = extra_buffers
    if header_only:
        params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise ModelLoadError(f"{path}: {_explain(log.errors)}")
    return model


def _explain(errors: list[str]) -> str:
    """Pick the line with the reason: the last lines of the library only report the failure."""
    text = " ".join(errors)
    if "not within the file bounds" in text or "failed to read" in text or "unexpectedly reached end of file" in text:
        return "the file is truncated or damaged"
    telling = [line for line in errors if "error loading model" in line] or errors[:1] or ["unknown reason"]
    return "cannot be loaded: " + telling[0].split("error loading model: ")[-1].strip()


def _head_sizes(model: Any) -> tuple[int, int]:
    """Return the numbers of a key and of a value of one head."""
    heads = max(1, int(lib.llama_model_n_head(model)))
    family = _metadata(model, "general.architecture")
    width = int(lib.llama_model_n_embd(model)) // heads
    key, value = (_metadata(model, f"{family}.attention.{name}_length") for name in ("key", "value"))
    return int(key or width), int(value or width)


def _metadata(model: Any, name: str) -> str:
    buffer = ctypes.create_string_buffer(_MOST_TEXT)
    size = lib.llama_model_meta_val_str(model, name.encode(), buffer, len(buffer))
    return buffer.value.decode(errors="replace") if size > 0 else ""


def _threads(model: Any) -> int:
    """All processors, but one for a model so small that threads would wait for each other more than they compute."""
    if lib.llama_model_n_params(model) < SMALL_PARAMETERS:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def budget_of(options: WorkerOptions, memory: int, weights: int, context: int) -> int:
    """Return the memory for the pool in bytes: the given one, or what suits the machine's memory and the model.

    `weights` are the bytes of the model, and `context` those of one context of full length. A pool that is much larger
    than the model helps little: two contexts are enough, or as many bytes as the model has, in a quarter of the memory.
    """
    if options.pool_bytes:
        return options.pool_bytes
    return min(memory // 4, max(weights, LEAST_BYTES, min(2 * context, MOST_BYTES)))


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _examine(path: str, model: Any, options: WorkerOptions, log: NativeLog) -> ModelArchitecture:
    """Detect the architecture in a small separate context; this also touches weights and threads once."""
    small = replace(options, pool_tokens=_EXAMINED_TOKENS, step_tokens=_EXAMINED_BATCH)
    abort_flag = AbortFlag()
    raw = _new_context(path, model, small, log, abort_flag, sequences=3, full_window=True)
    try:
        return examine(model, LlamaContext(raw, model, abort_flag))
    except ArithmeticError as error:
        raise ModelLoadError(f"{path}: {error}: {_explain(log.errors)}") from None
    finally:
        lib.llama_free(raw)


def _main_context(path: str, model: Any, options: WorkerOptions, plan: StatePlan, log: NativeLog) -> LlamaContext:
    abort_flag = AbortFlag()
    architecture = plan.architecture
    guarded = architecture.window if plan.full_window else 0
    ids = plan.sequences * (2 if guarded else 1)
    raw = _new_context(path, model, options, log, abort_flag, sequences=ids, full_window=plan.full_window)
    context = LlamaContext(
        raw,
        model,
        abort_flag,
        partial=plan.ranges,
        window=guarded,
        cell_bytes=architecture.cell_bytes,
        state_bytes=architecture.state_bytes,
        tiled=options.flash_attention and not log.no_flash_attention and not lib.llama_supports_gpu_offload(),
    )
    batch = TokenBatch(1)
    batch.add(0, [0], 0, output=True)
    context.decode(batch)  # touch all buffers once
    context.clear(0)
    return context


def _rounds_alike(context: LlamaContext, size: int) -> bool:
    """Compute tokens one by one and in batches, as guesses are, and return whether the logits have the same bits.

    Which kernels are used depends on the processor, on the types of the weights, and on the size of a batch.
    """
    tokens = [(7 * number + 1) % size for number in range(sum(_COMPARED_BATCHES))]
    alone = _logits(context, [tokens[number : number + 1] for number in range(len(tokens))], size)
    ends = list(accumulate(_COMPARED_BATCHES))
    batches = [tokens[end - count : end] for end, count in zip(ends, _COMPARED_BATCHES, strict=True)]
    return bool(np.array_equal(alone, _logits(context, batches, size)))


def _logits(context: LlamaContext, batches: list[list[int]], size: int) -> NDArray[np.float32]:
    """Return the logits after each token of a text, one row each, computed in these batches."""
    rows, position = [], 0
    for tokens in batches:
        batch = TokenBatch(len(tokens))
        batch.add(0, tokens, position, output=True, all_outputs=True)
        context.decode(batch)
        rows.append(context.outputs(len(tokens), size).copy())
        position += len(tokens)
    context.clear(0)
    return np.concatenate(rows)


def _new_context(
    path: str,
    model: Any,
    options: WorkerOptions,
    log: NativeLog,
    abort_flag: AbortFlag,
    *,
    sequences: int,
    full_window: bool,
) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = options.pool_tokens
    params.n_batch = options.step_tokens
    params.n_ubatch = options.step_tokens
    params.n_seq_max = sequences
    params.n_threads = params.n_threads_batch = options.threads
    set_kv_type(params, options)
    params.kv_unified = True
    params.swa_full = full_window
    params.no_perf = True
    params.abort_callback, params.abort_callback_data = abort_flag.function, abort_flag.data
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise ModelLoadError(f"{path}: no context of {options.pool_tokens} tokens can be made: {_explain(log.errors)}")
    return context
