"""The real worker with a model that never ends a step, or is slow.

    python hanging_worker.py FAULT MARK FD

With `hang` the twentieth step of the first life never returns, as in a deadlock of native code; MARK is a file that
this life leaves. With `spin` it does not return either, but computes. With `late` it computes for 4 s and then
returns. With `slow` every step takes 2.5 s longer.
"""

import sys
import threading
import time
from pathlib import Path

from cfs_server.engine.llama import ffi
from cfs_server.engine.worker import worker

SLOW_SECONDS = 2.5
LATE_SECONDS = 4.0


def compute(seconds: float) -> None:
    """Use the CPU as a step does that is not predicted to be long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def main() -> None:
    """Serve with this fault."""
    fault, mark, descriptor = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    sys.argv = [sys.argv[0], descriptor]
    if mark.exists():
        worker.main()
        return
    if fault in {"hang", "spin"}:
        mark.touch()
    decode = ffi.LlamaContext.decode
    steps = 0

    def faulty(context: ffi.LlamaContext, batch: ffi.TokenBatch) -> ffi.DecodeResult:
        nonlocal steps
        steps += 1
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        elif steps == 20 and fault == "hang":
            threading.Event().wait()
        elif steps == 20:
            compute(LATE_SECONDS if fault == "late" else float("inf"))
        return decode(context, batch)

    ffi.LlamaContext.decode = faulty  # type: ignore[method-assign,assignment]
    worker.main()


if __name__ == "__main__":
    main()
