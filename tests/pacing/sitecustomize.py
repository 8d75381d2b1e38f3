"""Sets the pace of the Python programs that tests start: Python imports this module first, as it is on `PYTHONPATH`.

`PACE_GATE` names a file by which a test says how many steps the engine may make (`tests/pacing/gate.py`).
`PACE_STEP` makes each step of the engine take so many seconds longer, as on a slow machine.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import mmap
import os
import sys
import time
from collections.abc import Sequence
from struct import Struct
from types import ModuleType
from typing import Any

SCHEDULER = "cfs_server.engine.llama.scheduler"
NUMBER, SECONDS = Struct("Q"), Struct("d")
LIMIT, MADE, AHEAD, SIZE = 0, 8, 16, 24
"""The file of a gate: how many steps may be made in all, how many were made, and how far the clocks are set forward."""


class Gate:
    """The worker's side of a gate."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 - every program imports this module
            self._shared = mmap.mmap(file.fileno(), SIZE)
        monotonic = time.monotonic
        time.monotonic = lambda: monotonic() + float(SECONDS.unpack_from(self._shared, AHEAD)[0])

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


def hold(scheduler: ModuleType, gate: Gate) -> None:
    """Have the engine compute nothing while the gate is closed. All else that it does goes on."""
    engine, runner = scheduler.Scheduler, scheduler.BatchRunner
    compute, alone, seconds = engine._compute, runner.compute_alone, runner.seconds_alone
    engine._compute = lambda self: compute(self) if gate.passes() else None
    runner.compute_alone = lambda self: alone(self) if self.seconds_alone() is not None and gate.passes() else None
    runner.seconds_alone = lambda self: None if gate.closed else seconds(self)


def delay(context: Any, seconds: float) -> None:
    """Have each step of a model take longer."""
    decode = context.decode

    def slow(self: Any, batch: Any) -> Any:
        time.sleep(seconds)
        return decode(self, batch)

    context.decode = slow


def pace(scheduler: ModuleType) -> None:
    """Change the engine as the variables say."""
    if path := os.environ.get("PACE_GATE"):
        hold(scheduler, Gate(path))
    if seconds := float(os.environ.get("PACE_STEP") or 0):
        delay(sys.modules["cfs_server.engine.llama.ffi"].Context, seconds)  # type: ignore[attr-defined]


class Pacer(importlib.abc.MetaPathFinder):
    """Changes the engine when it is imported, and nothing before that."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the signature is fixed
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the scheduler, and have it changed after its import."""
        if name != SCHEDULER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                pace(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("PACE_GATE") or os.environ.get("PACE_STEP"):
    sys.meta_path.insert(0, Pacer())
