"""Agents in a program of a user write nothing to its standard output (A1)."""

import subprocess
import sys

import pytest

_LOGS = """
import structlog
from cfs_agents.shell.shell import _log
{}
_log.warning("shell.lost", reason="it was killed")
print("mine")
"""
_CONFIGURED = "structlog.configure(processors=[structlog.processors.JSONRenderer()])"
_RECORD = '{"reason": "it was killed", "event": "shell.lost"}\n'


@pytest.mark.parametrize(("setup", "output"), [("", "mine\n"), (_CONFIGURED, f"{_RECORD}mine\n")])
def test_logs_go_to_standard_error_unless_the_program_says_otherwise(setup: str, output: str) -> None:
    command = [sys.executable, "-c", _LOGS.format(setup)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, "shell.lost" in done.stdout + done.stderr) == (output, True)
