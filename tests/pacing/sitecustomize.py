"""Sets the pace of the Python programs that tests start: Python imports this module first, as it is on `PYTHONPATH`.

`PACE_STEP`   seconds that each step of the engine takes longer
`PACE_CLOCK`  seconds that pass for a program in one second: with 0.1 the machine seems to be ten times as quick, and
              with 10 ten times as slow. Pauses and time limits of Python, asyncio and threads follow; programs in
              other languages, and time limits inside of the kernel, do not.
`PACE_RETRIES` with 0 clients of S3 repeat a failed request at once, and not after a random pause of some seconds
`PACE_GATE`   names a file by which a test says how many steps the engine may make (`tests/pacing/gate.py`)
"""

import importlib.abc
import importlib.machinery
import importlib.util
import mmap
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Sequence
from struct import Struct
from types import ModuleType
from typing import Any

SCHEDULER = "cfs_server.engine.worker.scheduler"
RETRIES = "botocore.retries.standard"
NUMBER, SECONDS = Struct("Q"), Struct("d")
LIMIT, MADE, AHEAD, SIZE = 0, 8, 16, 24
"""The file of a gate: how many steps may be made in all, how many were made, and how far the clocks are set forward."""


class Gate:
    """The worker's side of a gate."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 - every program imports this module
            self._shared = mmap.mmap(file.fileno(), SIZE)

    @property
    def ahead(self) -> float:
        """Seconds that the clocks are set forward."""
        return float(SECONDS.unpack_from(self._shared, AHEAD)[0])

    @property
    def closed(self) -> bool:
        """Whether no step may be made now."""
        return self._number(MADE) >= self._number(LIMIT)

    def passes(self) -> bool:
        """Count a step if it may be made."""
        if self.closed:
            time.sleep(0.001)  # the file, which one worker after the other uses, has no event to wait for
            return False
        NUMBER.pack_into(self._shared, MADE, self._number(MADE) + 1)
        return True

    def _number(self, offset: int) -> int:
        return int(NUMBER.unpack_from(self._shared, offset)[0])


def set_clock(pace: float, gate: Gate | None) -> None:
    """Change the clocks of this program, and all that waits for a time."""
    began, monotonic, perf_counter, sleep = time.monotonic(), time.monotonic, time.perf_counter, time.sleep
    time.monotonic = lambda: began + (monotonic() - began) * pace + (gate.ahead if gate else 0.0)
    if pace == 1:
        return
    time.perf_counter = lambda: perf_counter() * pace
    time.sleep = lambda seconds: sleep(float(seconds) / pace)
    selector, wait = selectors.DefaultSelector, threading.Condition.wait
    select = selector.select
    selector.select = lambda self, timeout=None: select(self, timeout and timeout / pace)  # type: ignore[method-assign]
    threading.Condition.wait = lambda self, timeout=None: wait(self, timeout and timeout / pace)  # type: ignore[method-assign]


def hold(scheduler: ModuleType, gate: Gate) -> None:
    """Have the engine compute nothing while the gate is closed. All else that it does goes on."""
    engine, runner = scheduler.Scheduler, scheduler.BatchRunner
    compute, alone, seconds = engine._compute, runner.compute_alone, runner.seconds_alone
    embed = engine._embed
    engine._compute = lambda self: compute(self) if gate.passes() else None
    engine._embed = lambda self: embed(self) if self._embeddings.waiting and gate.passes() else None
    runner.compute_alone = lambda self: alone(self) if seconds(self) is not None and gate.passes() else None
    runner.seconds_alone = lambda self: None if gate.closed else seconds(self)


def delay(context: Any, seconds: float) -> None:
    """Have each step of a model take longer."""
    decode = context.decode

    def slow(self: Any, batch: Any) -> Any:
        time.sleep(seconds)
        return decode(self, batch)

    context.decode = slow


def at_once(*_: object) -> float:
    """Return how many seconds a client of S3 rests before it repeats a request."""
    return 0.0


def repeat_at_once(retries: ModuleType) -> None:
    """Have clients of S3 repeat requests without a pause."""
    retries.ExponentialBackoff.delay_amount = at_once


class Pacer(importlib.abc.MetaPathFinder):
    """Changes a module when it is imported, and nothing before that."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the signature is fixed
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module, and have it changed after its import."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def main() -> None:
    """Do what the variables say."""
    step, clock, path = (os.environ.get(f"PACE_{name}") for name in ("STEP", "CLOCK", "GATE"))
    gate = Gate(path) if path else None

    def change(scheduler: ModuleType) -> None:
        if gate is not None:
            hold(scheduler, gate)
        if step:
            delay(sys.modules["cfs_server.engine.llama.ffi"].Context, float(step))

    if SCHEDULER in sys.modules:
        change(sys.modules[SCHEDULER])
    elif gate is not None or step:
        sys.meta_path.insert(0, Pacer(SCHEDULER, change))
    if os.environ.get("PACE_RETRIES") == "0" and RETRIES in sys.modules:
        repeat_at_once(sys.modules[RETRIES])
    elif os.environ.get("PACE_RETRIES") == "0":
        sys.meta_path.insert(0, Pacer(RETRIES, repeat_at_once))
    if gate is not None or clock:
        set_clock(float(clock or 1), gate)
    if clock:
        sys.modules["uvloop"] = None  # type: ignore[assignment] # it has a clock of its own; uvicorn does without it


if __name__ == "sitecustomize":
    main()
