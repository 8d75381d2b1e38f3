"""The page about WebDAV tells the truth: its commands run, with the programs that it names and the embedded model."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs_fuse.davfs_mount import PLACE
from tests.server.support import CFS, Process, environment, serving
from tests.webdav import davmount

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/webdav.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- tested: ([\w ]+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with serving() as process:
        yield process


def run(server: Process, snippet: str, folder: Path) -> list[str]:
    """Run a snippet in a folder; return the lines that it wrote."""
    mounts = [folder / "mnt", folder / "rmount"]
    script = SNIPPETS[snippet].replace("http://localhost:8000", server.url).replace("/mnt/dav", str(mounts[0]))
    env = environment(PATH=f"{CFS.parent}{os.pathsep}{os.environ['PATH']}", RCLONE_CONFIG=os.devnull, HOME=str(folder))
    try:
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        for path in mounts:
            davmount.unmount(path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def needs(*programs: str) -> None:
    """Skip the test where a program is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def needs_davfs2() -> None:
    """Skip the test where davfs2 cannot mount."""
    if reason := davmount.reason_to_skip():
        pytest.skip(reason)


def test_every_snippet_is_run() -> None:
    tested = set(re.findall(r'"([\w ]+)", tmp_path', Path(__file__).read_text(encoding="utf-8")))
    assert tested == set(SNIPPETS)
    assert len(SNIPPETS) == PAGE.count("```sh")


def test_davfs2(server: Process, tmp_path: Path) -> None:
    needs_davfs2()
    lines = run(server, "davfs2", tmp_path)
    assert lines[0].startswith("ready: ")
    assert lines[1] == "User: My name is Alice."
    (reply,) = [number for number, line in enumerate(lines) if line.startswith("total ")]
    assert "Alice" in lines[reply - 1]
    assert [line.split()[-1] for line in lines[reply + 1 :] if line.startswith("-")] == ["dav1", "dav2"]


def test_davfs2_by_hand(server: Process, tmp_path: Path) -> None:
    needs_davfs2()
    try:
        run(server, "davfs2 by hand", tmp_path)
    finally:
        for copies in PLACE.glob(f"*{str(tmp_path)[1:].replace('/', '-')}*"):
            shutil.rmtree(copies)


def test_curl(server: Process, tmp_path: Path) -> None:
    shown = "\n".join(run(server, "curl", tmp_path))
    assert shown.count("User: My name is Alice.\nAssistant: ") == 2
    assert "X-CFS-State: " in shown or "x-cfs-state: " in shown
    assert '"status": 412' in shown
    assert "<D:multistatus" in shown


def test_rclone(server: Process, tmp_path: Path) -> None:
    needs("rclone")
    for _ in ("first", "second"):  # it leaves nothing that a second run meets
        lines = run(server, "rclone", tmp_path)
        assert lines[0] == "User: My name is Alice."
        assert lines[1].startswith("Assistant: ")
        assert lines[-1].endswith(" rclone1")


def test_rclone_mount(server: Process, tmp_path: Path) -> None:
    needs("rclone", "fusermount3")
    needs_davfs2()  # which needs as much of the machine as this does
    lines = run(server, "rclone mount", tmp_path)
    assert [line for line in lines if line.startswith("User: ")] == [
        "User: My name is Alice.",
        "User: What is my name?",
    ]
    assert lines[-1].startswith("Assistant: ")


def test_cadaver(server: Process, tmp_path: Path) -> None:
    needs("cadaver")
    for _ in ("first", "second"):  # it leaves nothing that a second run meets
        shown = "\n".join(run(server, "cadaver", tmp_path))
        assert "User: My name is Alice.\nAssistant: " in shown
        assert "Value of temperature is: 0.2" in shown
        assert "Value of state is: idle" in shown
        assert " cadaver2 " in shown
        assert "failed" not in shown
