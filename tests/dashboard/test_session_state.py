"""The reducer of the dashboard runs the recorded events that Python's reducer runs, by `node --test` (D1, S11)."""

import shutil
import subprocess
from pathlib import Path

import playwright

NODE = shutil.which("node") or Path(playwright.__file__).parent / "driver/node"
"""Node.js, or the one that comes with Playwright, so that nothing has to be installed for this test."""


def test_the_dashboard_computes_the_state_that_the_server_had() -> None:
    tests = Path(__file__).with_name("session_state.test.mjs")
    done = subprocess.run([NODE, "--test", tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
