"""Killed at any point and started again, with its server or without, a tree finishes its task, each step once (B8)."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from tests.server.support import environment, serving

PROGRAM = Path(__file__).with_name("killed_tree.py")


def killed(folder: Path, *mode: str, victim: str = "runtime") -> dict[str, Any]:
    """Let the program kill trees, or their server, and return what it has found. The server is started again."""
    trees, data, pid = folder / "trees", folder / "data", folder / "pid"
    flags = ("--engine", "scripted", "--log-level", "error", "--data-dir", str(data), "--port", str(free_port()))
    with ExitStack() as servers:
        server = servers.enter_context(serving(*flags))
        pid.write_text(str(server.process.pid))
        env = environment(CFS_VICTIM=victim, CFS_SERVER_PID=str(pid))
        command = [sys.executable, str(PROGRAM), str(trees), server.url, *mode]
        pipe = subprocess.PIPE
        with (
            subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True) as program,
            ThreadPoolExecutor(1) as pool,
        ):
            result = pool.submit(program.communicate)
            try:
                while not result.done():
                    with suppress(subprocess.TimeoutExpired):
                        server.process.wait(0.02)
                        server = servers.enter_context(serving(*flags))
                        pid.write_text(str(server.process.pid))
            finally:
                if program.poll() is None:  # the time is over; the pool would wait for its end
                    os.killpg(program.pid, signal.SIGKILL)
    output, errors = result.result()
    assert program.returncode == 0, errors[-3000:]
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.timeout(300)
def test_killed_at_some_points_of_a_task(tmp_path: Path) -> None:
    found = killed(tmp_path, "every", "71")
    assert found["violations"] == {}
    assert found["kills"] >= 5


@pytest.mark.timeout(300)
def test_killed_again_and_again(tmp_path: Path) -> None:
    """Lives that all end early come to the end together."""
    found = killed(tmp_path, "stumbling", "103")
    assert found["violations"] == []
    assert found["kills"] >= 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", [pytest.param("server", marks=pytest.mark.slow), "both"])
def test_the_server_is_killed_at_some_points_of_a_task(tmp_path: Path, victim: str) -> None:
    """It comes back with its sessions, and the tree goes on, in the same process or in the next one."""
    found = killed(tmp_path, "every", "97", victim=victim)
    assert found["violations"] == {}
    assert found["kills"] >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", ["runtime", "server", "both"])
def test_killed_at_two_hundred_points(tmp_path: Path, victim: str) -> None:
    found = killed(tmp_path, "random", "200", "1", victim=victim)
    assert found["violations"] == {}
    assert found["kills"] >= 150
