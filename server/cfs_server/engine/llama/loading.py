"""Loads a model and its context, and turns the library's many lines about a failure into one."""

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from llama_cpp import llama_cpp as lib

from cfs_server.engine.frames import Options
from cfs_server.engine.interface import EnginePlan, ModelLoadError
from cfs_server.engine.llama.families import Family, Plan, examine, make_plan
from cfs_server.engine.llama.ffi import Batch, Brake, Context
from cfs_server.engine.llama.tiles import TILE
from cfs_server.engine.llama.vocabulary import Vocabulary

SMALL_PARAMETERS = 50_000_000
_MEANT = ("possible training context overflow", "failed to find a memory slot", "using full-size SWA cache")
"""Warnings about what we do on purpose: a pool larger than one context, more turns than fit into it, full windows."""
_NO_FLASH_ATTENTION = "Flash Attention not supported"
_LEVELS = {3: "warning", 4: "error"}
_EXAMINED_TOKENS, _EXAMINED_BATCH = 256, 8
"""Sizes of the context in which a model is examined."""


class NativeLog:
    """Receives the library's log; keeps the last errors and hands warnings and errors on."""

    _installed: ClassVar[Any] = None  # the library calls it for as long as the process lives, whoever else forgets it

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self.errors: list[str] = []
        self.no_flash_attention = False
        self._report = report
        self._lock = threading.Lock()
        self._held: list[tuple[str, str]] | None = None
        NativeLog._installed = lib.llama_log_callback(self._receive)
        lib.llama_log_set(NativeLog._installed, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _data: Any) -> None:
        name = _LEVELS.get(level)
        line = text.decode(errors="replace").strip() if name else ""
        if name is None or not line or any(known in line for known in _MEANT):
            return
        with self._lock:
            self.no_flash_attention |= _NO_FLASH_ATTENTION in line
            self.errors = [*self.errors[-15:], line] if name == "error" else self.errors
            if self._held is not None:
                self._held.append((name, line))
                return
        self._report(name, line)

    def hold(self) -> None:
        """Keep back what the library says from now on: of a step that fails all of it is one line."""
        self._held = []

    def take(self, *, failed: bool) -> str:
        """Hand on what was kept back, or return it as one line when it says why something failed."""
        with self._lock:
            held, self._held = self._held or [], None
        if failed:
            return "; ".join(line for _, line in held) or "the library does not say why"
        for name, line in held:
            self._report(name, line)
        return ""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to compute."""

    path: str
    raw: Any
    context: Context
    vocabulary: Vocabulary
    template: str | None
    parameters: int
    context_tokens: int
    options: Options
    plan: EnginePlan
    log: NativeLog  # kept as long as the model: the library calls back into it


def load(path: str, options: Options, log: NativeLog, *, extra_buffers: bool) -> LoadedModel:
    """Load the file at `path`; raises `ModelLoadError` with one line."""
    lib.llama_backend_init()
    model = load_weights(path, log, extra_buffers=extra_buffers)
    if not lib.llama_model_has_decoder(model) or not lib.llama_model_n_ctx_train(model):
        raise ModelLoadError(f"{path}: not a text generation model")
    options = replace(
        options,
        parallel=min(options.parallel, int(lib.llama_max_parallel_sequences())),
        threads=options.threads or _threads(model),
    )
    plan = make_plan(
        _examine(path, model, options, log), options, int(lib.llama_model_n_ctx_train(model)), _budget(options)
    )
    options = replace(
        options,
        context_tokens=plan.context_tokens,
        pool_tokens=plan.pool_tokens,
        step_tokens=max(options.step_tokens, options.parallel, TILE),
    )
    context = _main_context(path, model, options, plan, log)
    template = lib.llama_model_chat_template(model, None)
    return LoadedModel(
        path=path,
        raw=model,
        context=context,
        vocabulary=Vocabulary(model),
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
    )


def load_weights(path: str, log: NativeLog, *, extra_buffers: bool, header_only: bool = False) -> Any:
    """Load the weights alone, or only what the file says of them."""
    params = lib.llama_model_default_params()
    params.use_extra_bufts = extra_buffers
    if header_only:
        params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
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


def _threads(model: Any) -> int:
    """All processors, but one for a model so small that threads would wait for each other more than they compute."""
    if lib.llama_model_n_params(model) < SMALL_PARAMETERS:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _budget(options: Options) -> int:
    """Memory that the pool may take unless its size in tokens is given."""
    return min(options.pool_bytes, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)


def _examine(path: str, model: Any, options: Options, log: NativeLog) -> Family:
    """Find out the family in a small context of its own; that also touches weights and threads once."""
    small = replace(options, pool_tokens=_EXAMINED_TOKENS, step_tokens=_EXAMINED_BATCH)
    brake = Brake()
    raw = _new_context(path, model, small, log, brake, sequences=3, full_window=True)
    try:
        return examine(model, Context(raw, model, brake))
    except ArithmeticError as error:
        raise ModelLoadError(f"{path}: {error}: {_explain(log.errors)}") from None
    finally:
        lib.llama_free(raw)


def _main_context(path: str, model: Any, options: Options, plan: Plan, log: NativeLog) -> Context:
    brake = Brake()
    family = plan.family
    guarded = family.window if plan.full_window else 0
    ids = plan.sequences * (2 if guarded else 1)
    raw = _new_context(path, model, options, log, brake, sequences=ids, full_window=plan.full_window)
    context = Context(
        raw,
        model,
        brake,
        partial=plan.ranges,
        window=guarded,
        cell_bytes=family.cell_bytes,
        state_bytes=family.state_bytes,
        tiled=options.flash_attention and not log.no_flash_attention and not lib.llama_supports_gpu_offload(),
    )
    batch = Batch(1)
    batch.add(0, [0], 0, output=True)
    context.decode(batch)  # touch all buffers once
    context.clear(0)
    return context


def _new_context(
    path: str, model: Any, options: Options, log: NativeLog, brake: Brake, *, sequences: int, full_window: bool
) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = options.pool_tokens
    params.n_batch = options.step_tokens
    params.n_ubatch = options.step_tokens
    params.n_seq_max = sequences
    params.n_threads = params.n_threads_batch = options.threads
    flash, plain = lib.LLAMA_FLASH_ATTN_TYPE_AUTO, lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.flash_attn_type = flash if options.flash_attention else plain
    params.kv_unified = True
    params.swa_full = full_window
    params.no_perf = True
    params.abort_callback, params.abort_callback_data = brake.function, brake.data
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise ModelLoadError(f"{path}: no context of {options.pool_tokens} tokens can be made: {_explain(log.errors)}")
    return context
