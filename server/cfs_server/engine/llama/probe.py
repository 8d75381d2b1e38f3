"""Finds out, in a throw-away process, whether this machine's fast native code survives the real model.

On CPUs with AMX the natively built library ends with SIGSEGV for every quantised model as soon as a batch has more
than one token (ENGINE.md). A probe that dies so means: load without the repacked weights that this code uses.

    python -m cfs_server.engine.llama.probe MODEL
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

PROBE_SECONDS = 600.0
"""A probe that takes longer says nothing; the model is then loaded as if it had passed."""
COMMAND = (sys.executable, "-P", "-m", "cfs_server.engine.llama.probe")
NOTE = "the library's AMX code crashes on this machine with this model: running without it"


def is_needed(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor has AMX."""
    try:
        return " amx_tile" in cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


async def survives(model: Path, command: Sequence[str] = COMMAND, timeout: float = PROBE_SECONDS) -> bool:
    """Run the probe; false only when a signal ended it. What it says about a bad file is said again at loading."""
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


def main() -> None:
    """Decode two tokens of the model together."""
    from cfs_server.engine.llama.ffi import Batch
    from cfs_server.engine.llama.model import NativeLog, load
    from cfs_server.engine.protocol import Options

    log = NativeLog(lambda _level, _text: None)
    options = Options(parallel=1, pool_tokens=256, context_tokens=256, step_tokens=64)
    model = load(sys.argv[1], options, log, extra_buffers=True)
    batch = Batch(2)
    batch.add(0, [0, 1], 0, output=True)
    model.context.decode(batch)


if __name__ == "__main__":
    main()
