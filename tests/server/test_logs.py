"""What the log of the server does with texts from elsewhere."""

import json
import subprocess
import sys

import pytest

SCRIPT = r"""
import structlog
from cfs_server.main import logs
logs.configure({form!r}, "info")
log = structlog.get_logger("test")
evil = "\x1b]0;owned\x07 \x9b2J\u2028\n2026-01-01 [info] forged \u202e"
log.info("refused", reason=evil, name="Zoë")
try:
    raise ValueError(evil)
except ValueError:
    log.exception("defect")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_value_cannot_control_a_terminal_or_forge_a_line(form: str) -> None:
    """Reasons contain what upstreams and clients say; a log is read in a terminal."""
    command = [sys.executable, "-c", SCRIPT.format(form=form)]
    logged = subprocess.run(command, capture_output=True, check=True, env={"PYTHONUTF8": "1"}).stderr.decode()
    assert not set(logged) & set("\x1b\x07\x9b\u2028")
    lines = logged.splitlines()
    assert "Zoë" in lines[0]
    if form == "json":
        assert json.loads(lines[0])["reason"] == "\x1b]0;owned\x07 \x9b2J\u2028\n2026-01-01 [info] forged \u202e"
        assert len(lines) == 2
    else:
        assert "␛]0;owned␇" in lines[0]
        assert "forged" in lines[0]
