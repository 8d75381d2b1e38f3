"""The parts of the dashboard that need no browser, by `node --test`: the reducer, colours, texts (D1, S11)."""

import shutil
import subprocess
from pathlib import Path

import playwright
import pytest

NODE = shutil.which("node") or Path(playwright.__file__).parent / "driver/node"
"""Node.js, or the one that comes with Playwright, so that nothing has to be installed for these tests."""
TESTS = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.parametrize("tests", TESTS, ids=lambda path: path.name)
def test_the_modules_of_the_dashboard_pass_their_own_tests(tests: Path) -> None:
    done = subprocess.run([NODE, "--test", tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
