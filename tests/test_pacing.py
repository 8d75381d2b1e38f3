"""What sets the pace of programs does it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.pacing import python_path
from tests.pacing.clock import Clock
from tests.pacing.gate import Gate

PROGRAM = """
import asyncio, threading, time
began = time.monotonic()
time.sleep(1000)
asyncio.run(asyncio.sleep(1000))
threading.Event().wait(1000)
print(time.monotonic() - began >= 3000)
"""


def run(program: str, **env: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=os.environ | env | {"PYTHONPATH": python_path()}, capture_output=True, text=True, check=True
    ).stdout


def test_all_that_waits_follows_the_clock_of_a_slow_machine() -> None:
    """An hour of it is over at once."""
    assert run(PROGRAM, PACE_CLOCK="10000") == "True\n"


def test_programs_behind_a_gate_have_its_clock(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    gate.pass_time(1e9)
    assert float(run("import time; print(time.monotonic())", **gate.environment)) > 1e9


async def test_a_clock_that_is_stopped_goes_on_when_it_is_set(clock: Clock) -> None:
    with clock.stopped():
        before = clock.now()
        await clock.passes(1000.0)
        assert clock.now() == before + 1000.0
