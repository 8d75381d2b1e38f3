"""Killed while it merges the copy of an isolated child, or with a full disk then, a tree loses no work (S17, A7)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.disks import Mount, ext4, mount
from tests.server.support import environment

__all__ = ["mount"]
PROGRAM = Path(__file__).with_name("killed_merge.py")


def merges(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the program, and return its findings."""
    command = [sys.executable, str(PROGRAM), str(folder), *arguments]
    root = Path(__file__).parents[3]
    env = environment(PYTHONPATH=str(root))
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=root, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(300)
def test_killed_in_a_merge_it_is_merged_at_the_next_start(tmp_path: Path) -> None:
    """All files are merged, the copy is whole, and the parent learns of the conflict."""
    report = merges(tmp_path, "kill", "10", "1")
    assert report["violations"] == {}
    assert report["kills"] >= 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_in_a_merge_at_two_hundred_points(tmp_path: Path) -> None:
    report = merges(tmp_path, "kill", "200", "2")
    assert report["violations"] == {}
    assert report["kills"] >= 200


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [pytest.param("tmpfs", marks=pytest.mark.slow), "ext4"])
def test_a_merge_on_a_full_disk_is_carried_out_when_there_is_room(mount: Mount, tmp_path: Path, kind: str) -> None:
    """The report names the copy and says that it is not merged yet. The next start merges it, and says that, too."""
    size = 24
    disk = (
        ext4(mount, tmp_path / "image", size)
        if kind == "ext4"
        else mount("disk", "-t", "tmpfs", "-o", f"size={size}m", kind)
    )
    report = merges(disk, "fill", "5", "3")
    assert report["violations"] == {}
    assert report["kills"] == 5
