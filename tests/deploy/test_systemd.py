"""`deploy/systemd/cfs.service`: systemd accepts the unit, and the server works within its limits."""

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cfs_server.config.settings import ServerSettings
from tests.server.support import CFS, environment

UNIT = Path(__file__).parent.parent.parent / "deploy/systemd/cfs.service"
PROGRAM = "/opt/cfs/bin/cfs"
MOST_EXPOSED = "20"
"""In tenths, as `systemd-analyze security` measures it: below 2 of 10."""
needs_systemd = pytest.mark.skipif(
    not Path("/usr/bin/systemd-analyze").exists(), reason="needs systemd-analyze: scripts/test installs it on Debian"
)

CONFINED = """
import ctypes, os, sys
import pyseccomp

allowed = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
for name in sys.argv[1].split():
    try:
        allowed.add_rule(pyseccomp.ALLOW, name)
    except (ValueError, OSError, RuntimeError):
        pass  # another processor's
assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0 or os.uname().release < "6.3"  # MemoryDenyWriteExecute
allowed.load()
os.execv(sys.argv[2], sys.argv[2:])
"""


def service() -> dict[str, str]:
    """Return the section of the service."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return dict(parser["Service"])


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@needs_systemd
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """With the program where this test has it."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, str(CFS)), encoding="utf-8")
    found = analyze("verify", "--man=no", str(unit))
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@needs_systemd
def test_the_service_is_confined() -> None:
    found = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(UNIT))
    assert found.returncode == 0, found.stdout[-400:] + found.stderr


def test_its_settings_are_those_of_the_server() -> None:
    """And it is killed only after the grace of the turns."""
    found = service()
    variables = dict(word.split("=", 1) for word in shlex.split(found["Environment"]))
    ours = {name.removeprefix("CFS_").lower() for name in variables if name.startswith("CFS_")}
    assert ours <= ServerSettings.model_fields.keys()
    assert float(variables["CFS_SHUTDOWN_GRACE"]) < float(found["TimeoutStopSec"])
    assert found["ExecStart"] == f"{PROGRAM} serve"


@needs_systemd
def test_the_server_answers_with_the_system_calls_that_are_left(tmp_path: Path) -> None:
    """The embedded model, a store on the disk, and Markdown, which is rendered in a process with limits of its own."""
    calls = " ".join(sorted(_calls(service()["SystemCallFilter"])))
    command = [sys.executable, "-c", CONFINED, calls, str(CFS), "serve", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(CFS_DATA_DIR=str(tmp_path))
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("listening on ").strip()
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                said = client.post("/v1/sessions/a/messages", params={"wait": "true"}, content=b"My name is Alice.")
                assert "Alice" in said.json()["reply"]
                shown = client.post("/v1/render", json={"items": [{"text": "**bold**", "language": "markdown"}]})
                assert "<strong>bold</strong>" in shown.text
        finally:
            process.terminate()
        assert process.wait(30) == 0


def _calls(group: str) -> set[str]:
    """Return the system calls of a group of systemd, which may contain others."""
    lines = analyze("syscall-filter", group).stdout.splitlines()
    names = {line.strip() for line in lines[1:] if re.fullmatch(r"\s+@?[\w-]+", line)}
    assert names, group
    return {name for name in names if name[0] != "@"}.union(*(_calls(name) for name in names if name[0] == "@"))
