"""Tests a model file in a temporary process, because native code may crash on it.

    python -m cfs_server.engine.llama.probe decode MODEL
    python -m cfs_server.engine.llama.probe header MODEL

`decode` tests whether this machine's fast native code works with the model. On CPUs with AMX the natively built library
ends with SIGSEGV for every quantised model when a batch has more than one token (ENGINE.md). The model is then loaded
without the repacked weights that this code uses. `header` prints the metadata of the file without loading its weights.
"""

import asyncio
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cfs_server.engine.contract.interface import ModelLoadError

PROBE_SECONDS = 600.0
"""A probe that takes longer shows nothing; the model is then loaded as if it had passed."""
HEADER_SECONDS = 60.0
_MOST_TEXT = 1024
_MODULE = (sys.executable, "-P", "-m", "cfs_server.engine.llama.probe")
COMMAND = (*_MODULE, "decode")
NOTE = "the library's AMX code crashes on this machine with this model: running without it"


def is_needed(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor has AMX."""
    try:
        return " amx_tile" in cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


async def survives(model: Path, command: Sequence[str] = COMMAND, timeout: float = PROBE_SECONDS) -> bool:
    """Run the probe; false only when a signal ended it. Loading reports the error of a bad file."""
    process = await asyncio.create_subprocess_exec(
        *command,
        str(model),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return await asyncio.wait_for(process.wait(), timeout) >= 0
    except TimeoutError:
        return True
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata of a model. `state` is the form of its state in the engine.

    `licence`, `quantisation` and `pooling` are empty if the file does not say.
    """

    state: str
    architecture: str
    parameters: int
    context_tokens: int
    has_chat_template: bool
    quantisation: str
    licence: str
    pooling: str = ""
    makes_texts: bool = True

    def __str__(self) -> str:
        """Describe the model in one line."""
        return f"{self.state}, {self.parameters:,} parameters, context of {self.context_tokens:,} tokens"


def describe(model: Path) -> Header:
    """Read the metadata of a file; raises `ModelLoadError` when the library cannot read it."""
    try:
        process = subprocess.run(  # noqa: S603 - a module of this package
            [*_MODULE, "header", str(model)], capture_output=True, text=True, timeout=HEADER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelLoadError(f"{model}: its header cannot be read within {HEADER_SECONDS:.0f} seconds") from None
    line = process.stdout.strip()
    if process.returncode:
        raise ModelLoadError(line or f"{model}: the library fails on its header (exit code {process.returncode})")
    return Header(**json.loads(line))


def _decode(path: str) -> int:
    """Compute two tokens of the model together."""
    import numpy as np

    from cfs_server.engine.contract.protocol import WorkerOptions
    from cfs_server.engine.llama.embedding import EmbeddingContext
    from cfs_server.engine.llama.ffi import NativeLog, TokenBatch
    from cfs_server.engine.llama.model import LoadedEncoder, load_any

    log = NativeLog(lambda _level, _text: None)
    options = WorkerOptions(parallel=1, pool_tokens=256, context_tokens=256, step_tokens=64)
    model = load_any(path, options, log, extra_buffers=True)
    if isinstance(model, LoadedEncoder):
        sizes = {"tokens": 64, "batch": 64, "sequences": 1, "threads": model.options.threads}
        context = EmbeddingContext(model.raw, model.pooling, **sizes, flash=options.flash_attention)
        context.vectors([np.array([0, 1], dtype=np.int32)])
        return 0
    batch = TokenBatch(2)
    batch.add(0, [0, 1], 0, output=True)
    model.context.decode(batch)
    return 0


def _header(path: str) -> int:
    """Print one line: the model's metadata as JSON, or the reason why the file is invalid."""
    from llama_cpp import llama_cpp as lib

    from cfs_server.engine.llama.embedding import Pooling
    from cfs_server.engine.llama.ffi import NativeLog
    from cfs_server.engine.llama.model import load_weights, name_of

    log = NativeLog(lambda _level, _text: None)
    lib.llama_backend_init()
    try:
        model = load_weights(path, log, extra_buffers=False, header_only=True)
    except ModelLoadError as error:
        print(error)  # noqa: T201 - for the parent
        return 1
    buffer = ctypes.create_string_buffer(_MOST_TEXT)
    lib.llama_model_desc(model, buffer, len(buffer))
    kind = buffer.value.decode(errors="replace").split()  # such as "llama 134M Q4_1"
    lib.llama_model_meta_val_str(model, b"general.license", buffer, len(buffer))
    pooling = Pooling.of(model)
    header = Header(
        state=name_of(model),
        architecture=kind[0] if kind else "",
        parameters=int(lib.llama_model_n_params(model)),
        context_tokens=int(lib.llama_model_n_ctx_train(model)),
        has_chat_template=bool(lib.llama_model_chat_template(model, None)),
        quantisation=" ".join(kind[2:]),
        licence=buffer.value.decode(errors="replace"),
        pooling=pooling.name if pooling else "",
        makes_texts=not (pooling and pooling.whole),
    )
    print(json.dumps(asdict(header)))  # noqa: T201
    return 0


if __name__ == "__main__":
    code = {"decode": _decode, "header": _header}[sys.argv[1]](sys.argv[2])
    sys.stdout.flush()
    os._exit(code)  # the library must not free weights that were never loaded
