"""What sets the pace of programs does it."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def ticks() -> Iterator[threading.Event]:
    """Each tick of a loop in a thread, such as that of a server which tests share. It ends after the tests."""
    ticked, ends = threading.Event(), threading.Event()

    async def tick() -> None:
        while not ends.is_set():
            ticked.set()
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(tick()))
    thread.start()
    yield ticked
    ends.set()
    thread.join(10)
    assert not thread.is_alive(), "it waits until the clock has caught up"


def test_loops_of_other_threads_go_on_after_a_test_that_sets_the_clock(ticks: threading.Event, clock: Clock) -> None:
    clock.advance(3600)
    for _ in range(3):
        ticks.clear()
        assert ticks.wait(10)
