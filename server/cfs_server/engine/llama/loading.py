"""Loads a model and its context, and turns the library's many lines about a failure into one."""

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from llama_cpp import llama_cpp as lib

from cfs_server.engine.frames import Options
from cfs_server.engine.interface import ModelLoadError
from cfs_server.engine.llama.budget import MIN_PROMPT_TOKENS
from cfs_server.engine.llama.ffi import Batch, Brake, Context
from cfs_server.engine.llama.vocabulary import Vocabulary

POOL_BYTES = 1 << 30
"""Most memory that the pool takes unless its size is given."""
SMALL_PARAMETERS = 50_000_000
_MEANT = ("possible training context overflow", "failed to find a memory slot")
"""Warnings about what we do on purpose: a pool larger than one context, and more turns than fit into it."""
_LEVELS = {3: "warning", 4: "error"}


class NativeLog:
    """Receives the library's log; keeps the last errors and hands warnings and errors on."""

    _installed: ClassVar[Any] = None  # the library calls it for as long as the process lives, whoever else forgets it

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self.errors: list[str] = []
        self._report = report
        self._lock = threading.Lock()
        NativeLog._installed = lib.llama_log_callback(self._receive)
        lib.llama_log_set(NativeLog._installed, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _data: Any) -> None:
        name = _LEVELS.get(level)
        line = text.decode(errors="replace").strip() if name else ""
        if name is None or not line or any(known in line for known in _MEANT):
            return
        with self._lock:
            self.errors = [*self.errors[-15:], line] if name == "error" else self.errors
        self._report(name, line)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to compute."""

    raw: Any
    context: Context
    vocabulary: Vocabulary
    template: str | None
    parameters: int
    context_tokens: int
    options: Options
    log: NativeLog  # kept as long as the model: the library calls back into it


def load(path: str, options: Options, log: NativeLog, *, extra_buffers: bool) -> LoadedModel:
    """Load the file at `path`; raises `ModelLoadError` with one line."""
    lib.llama_backend_init()
    model = load_weights(path, log, extra_buffers=extra_buffers)
    if not lib.llama_model_has_decoder(model) or not lib.llama_model_n_ctx_train(model):
        raise ModelLoadError(f"{path}: not a text generation model")
    options = _resolve(model, options)
    brake = Brake()
    context = Context(_new_context(path, model, options, log, brake), model, brake)
    _warm_up(context)
    template = lib.llama_model_chat_template(model, None)
    return LoadedModel(
        raw=model,
        context=context,
        vocabulary=Vocabulary(model),
        template=template.decode(errors="replace") if template else None,
        parameters=int(lib.llama_model_n_params(model)),
        context_tokens=min(options.context_tokens, context.cells),
        options=options,
        log=log,
    )


def load_weights(path: str, log: NativeLog, *, extra_buffers: bool) -> Any:
    """Load the weights alone."""
    params = lib.llama_model_default_params()
    params.use_extra_bufts = extra_buffers
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise ModelLoadError(f"{path}: {_explain(log.errors)}")
    return model


def _explain(errors: list[str]) -> str:
    """Pick the line that says why: the library ends with several that only say that it failed."""
    text = " ".join(errors)
    if "not within the file bounds" in text or "failed to read" in text or "unexpectedly reached end of file" in text:
        return "the file is truncated or damaged"
    telling = [line for line in errors if "error loading model" in line] or errors[:1] or ["unknown reason"]
    return "cannot be loaded: " + telling[0].split("error loading model: ")[-1].strip()


def _resolve(model: Any, options: Options) -> Options:
    """Choose what the options leave open."""
    trained = int(lib.llama_model_n_ctx_train(model))
    context = min(options.context_tokens or trained, trained)
    pool = options.pool_tokens or _pool_tokens(model, context, options.parallel)
    threads = options.threads or _threads(model)
    parallel = min(options.parallel, int(lib.llama_max_parallel_sequences()))
    return replace(
        options,
        parallel=parallel,
        context_tokens=context,
        pool_tokens=pool,
        threads=threads,
        step_tokens=max(options.step_tokens, parallel + MIN_PROMPT_TOKENS),
    )


def _threads(model: Any) -> int:
    """All processors, but one for a model so small that threads would wait for each other more than they compute."""
    if lib.llama_model_n_params(model) < SMALL_PARAMETERS:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pool_tokens(model: Any, context: int, parallel: int) -> int:
    """All sequences at full length, or what fits into a bounded amount of memory."""
    heads, kv_heads = int(lib.llama_model_n_head(model)), int(lib.llama_model_n_head_kv(model))
    kv_width = int(lib.llama_model_n_embd(model)) * max(kv_heads, 1) // max(heads, 1)
    bytes_per_token = 2 * 2 * kv_width * int(lib.llama_model_n_layer(model))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    affordable = min(POOL_BYTES, memory // 4) // bytes_per_token
    return max(min(context * parallel, affordable), min(context, 4096))


def _new_context(path: str, model: Any, options: Options, log: NativeLog, brake: Brake) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = options.pool_tokens
    params.n_batch = options.step_tokens
    params.n_ubatch = options.step_tokens
    params.n_seq_max = _sequence_ids(model, options.parallel)
    params.n_threads = params.n_threads_batch = options.threads
    flash, plain = lib.LLAMA_FLASH_ATTN_TYPE_AUTO, lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.flash_attn_type = flash if options.flash_attention else plain
    params.kv_unified = True
    params.swa_full = True  # a window of the last tokens only could not go back to an earlier prefix
    params.no_perf = True
    params.abort_callback, params.abort_callback_data = brake.function, brake.data
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise ModelLoadError(f"{path}: no context of {options.pool_tokens} tokens can be made: {_explain(log.errors)}")
    return context


def _warm_up(context: Context) -> None:
    """Touch weights, buffers and threads once, and see whether this kind of model can drop a part of a sequence."""
    batch = Batch(2)
    batch.add(0, [0], 0, output=True)
    context.decode(batch)
    batch.clear()
    batch.add(0, [0, 0], 1, output=True)
    context.decode(batch)
    context.partial = context.truncate(0, 2)
    context.clear(0)


def _sequence_ids(model: Any, parallel: int) -> int:
    """Ids for running and briefly idle sequences; recurrent state costs memory for each id, attention does not."""
    if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model):
        return parallel + 1
    return min(max(64, 4 * parallel), int(lib.llama_max_parallel_sequences()))
