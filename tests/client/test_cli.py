"""The program: its commands, what it imports for them, completion, and what is missing (C10)."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest
from typer.testing import CliRunner

from cfs.cli import app
from tests.client.harness import HttpHarness
from tests.client.terminal import cfs
from tests.server.support import environment, run_cfs

HEAVY = {"httpx", "fastapi", "uvicorn", "llama_cpp", "huggingface_hub", "numpy"}
COMMANDS = ["send", "chat", "cat", "ls", "rm", "export", "import", "up", "doctor", "serve", "token", "model"]


def run(*arguments: str, found: list[EntryPoint]) -> tuple[int, str]:
    """Run the program with some rooms."""
    result = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app.build(found), arguments)
    return result.exit_code, result.output


def imported(*arguments: str) -> set[str]:
    """The packages and modules that a call of the program imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cfs", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))


MISSING = EntryPoint("fuse", "cfs_no_such_package.cli:app", app.GROUP)


def test_a_missing_extra_is_told_when_a_command_is_not_found() -> None:
    code, output = run("mount", "/x", found=[MISSING])
    assert code == 2
    assert "pip install 'cfs-local[fuse]'" in output


def test_without_a_missing_extra_an_unknown_command_is_just_that() -> None:
    code, output = run("mount", found=[])
    assert (code, "pip install" in output) == (2, False)


@pytest.mark.parametrize("found", [[], [MISSING]])
def test_a_typing_error_is_understood(found: list[EntryPoint]) -> None:
    code, output = run("snd", found=found)
    assert (code, "Did you mean 'send'" in output) == (2, True)


@pytest.mark.parametrize("found", [[], [MISSING]])
def test_the_version_needs_no_extra(found: list[EntryPoint]) -> None:
    code, output = run("--version", found=found)
    assert (code, output.startswith("cfs ")) == (0, True)


def test_every_command_is_listed_and_explains_itself() -> None:
    rooms = list(entry_points(group=app.GROUP))
    listed = run("--help", found=rooms)[1]
    for command in COMMANDS:
        assert re.search(rf"^\W*{command} +\w", listed, re.MULTILINE), command
        code, output = run(command, "--help", found=rooms)
        assert (code, f"Usage: cfs {command}" in output or f"Usage: root {command}" in output) == (0, True), output


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["serve", "--help"], ["send", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported(*arguments) & HEAVY == set()


def test_a_client_command_does_not_load_the_server() -> None:
    modules = imported("ls", "--url", "http://127.0.0.1:9")
    assert "httpx" in modules
    assert {module for module in modules if module.startswith("cfs_")} == set()


def test_python_m_cfs_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "cfs", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, run_cfs("--version").stdout)


def completed(url: str, words: str, last: int) -> list[str]:
    """What bash would offer for the last of some words."""
    done = cfs(url, _CFS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(last))
    assert done.stderr == b""
    return done.stdout.decode().split()


def test_the_shell_completes_commands_and_names_of_sessions(http_harness: HttpHarness) -> None:
    http_harness.do(lambda: [http_harness.server.store.open(session) for session in ("chat1", "chat2", "other")])
    assert completed(http_harness.url, "cfs se", 1) == ["send", "serve"]
    assert completed(http_harness.url, "cfs cat ch", 2) == ["chat1", "chat2"]
    assert completed("http://127.0.0.1:9", f"cfs cat --url {http_harness.url} o", 4) == ["other"]


def test_without_a_server_nothing_is_completed() -> None:
    assert completed("http://127.0.0.1:9", "cfs cat ch", 2) == []
    assert completed("nonsense", "cfs cat ch", 2) == []
