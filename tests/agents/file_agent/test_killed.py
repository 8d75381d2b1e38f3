"""Killed at any point and started again, an agent finishes its task, and does nothing twice that is done (A1)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("killed_agent.py")


def killed(folder: Path, mode: str, number: int) -> dict[str, Any]:
    """Let the program kill agents, and return what it has found."""
    command = [sys.executable, str(PROGRAM), str(folder), mode, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_every(tmp_path: Path, stride: int, kills: int) -> None:
    found = killed(tmp_path, "every", stride)
    assert found["violations"] == {}
    assert found["kills"] >= kills


@pytest.mark.timeout(600)
def test_killed_at_points_all_through_a_task(tmp_path: Path) -> None:
    """Every 17th of some two hundred points: before and after each write, each command, each question."""
    check_every(tmp_path, 17, 10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_every_point_of_a_task(tmp_path: Path) -> None:
    """All of them."""
    check_every(tmp_path, 1, 200)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", [pytest.param(23, marks=pytest.mark.slow), 36])
def test_killed_again_and_again(tmp_path: Path, point: int) -> None:
    """Lives that all end early, each in the middle of something, come to the end together."""
    found = killed(tmp_path, "stumbling", point)
    assert found["violations"] == []
    assert found["kills"] >= 4
