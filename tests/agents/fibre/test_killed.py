"""Killed at any point and started again, a tree finishes its task, and its sessions show each step once (B8)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.support import serving

PROGRAM = Path(__file__).with_name("killed_tree.py")


def killed(folder: Path, *mode: str) -> dict[str, Any]:
    """Let the program kill trees, and return what it has found."""
    with serving("--engine", "scripted", "--log-level", "error") as server:
        command = [sys.executable, str(PROGRAM), str(folder), server.url, *mode]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_two_hundred_points(tmp_path: Path) -> None:
    found = killed(tmp_path, "random", "200", "1")
    assert found["violations"] == {}
    assert found["kills"] >= 150
