"""Says what a model file holds without loading its weights, in a throw-away process, as bad files may end the library.

python -m cfs_server.engine.llama.header MODEL
"""

import os
import subprocess
import sys
from pathlib import Path

from cfs_server.engine.interface import ModelLoadError

COMMAND = (sys.executable, "-P", "-m", "cfs_server.engine.llama.header")
SECONDS = 60.0


def describe(model: Path) -> str:
    """Name the model's architecture and sizes; raises `ModelLoadError` when the library cannot read the header."""
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            [*COMMAND, str(model)], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelLoadError(f"{model}: its header cannot be read within {SECONDS:.0f} seconds") from None
    line = done.stdout.strip()
    if done.returncode:
        raise ModelLoadError(line or f"{model}: the library fails on its header (exit code {done.returncode})")
    return line


def main() -> int:
    """Print one line: what the model is, or why it is none."""
    from llama_cpp import llama_cpp as lib

    from cfs_server.engine.llama.model import NativeLog, load_weights, name_of

    log = NativeLog(lambda _level, _text: None)
    lib.llama_backend_init()
    try:
        model = load_weights(sys.argv[1], log, extra_buffers=False, header_only=True)
    except ModelLoadError as error:
        print(error)  # noqa: T201 - for the parent
        return 1
    parameters, context = lib.llama_model_n_params(model), lib.llama_model_n_ctx_train(model)
    print(f"{name_of(model)}, {parameters:,} parameters, context of {context:,} tokens")  # noqa: T201
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what the library would tear down has never been loaded
