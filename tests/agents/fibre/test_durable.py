"""A report is on the disk before the server hears of it: seen in the system calls of a tree."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import disk_trace
from tests.server.support import environment, serving

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.agents.fibre.killed_tree import live

asyncio.run(live(Path(sys.argv[1]), sys.argv[2], "t", lambda: None))
"""


@pytest.mark.skipif(not disk_trace.works(), reason="needs strace")
@pytest.mark.timeout(200)
def test_the_state_of_an_agent_is_on_the_disk_before_its_turn_ends(tmp_path: Path) -> None:
    """Other agents of the tree may be writing at that moment."""
    log, trees = tmp_path / "calls", tmp_path / "trees"
    with serving("--engine", "scripted", "--log-level", "error", "--data-dir", str(tmp_path / "data")) as server:
        program = [sys.executable, "-c", PROGRAM, str(trees), server.url]
        command = disk_trace.traced(log, program)
        root = Path(__file__).parents[3]
        done = subprocess.run(command, env=environment(), cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = disk_trace.acknowledgements(log, trees, "POST /v1/sessions/t[^ ]*/finish")
    assert len(ends) == 5
    for end in ends:
        session = end.text.split("/turns/")[0].removeprefix("POST /v1/sessions/")
        name = session.rpartition("/")[2]
        folder = trees / "t" if session == "t" else trees / "t" / "sub_sessions" / name
        own = {path for path in end.dirty if Path(path) == folder or Path(path).parent == folder}
        assert own == set(), session
    assert disk_trace.changes(log, trees) > 50
