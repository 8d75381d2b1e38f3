"""cadaver, with commands from a pipe: what a person would type (W1, W5)."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.support import GUARD_SECONDS, Stage
from tests.server.support import environment

pytestmark = pytest.mark.skipif(shutil.which("cadaver") is None, reason="cadaver is not installed")

ONE = "User: one\nAssistant: one\n"
Cadaver = Callable[..., str]


@pytest.fixture
def cadaver(stage: Stage, tmp_path: Path) -> Cadaver:
    """Type commands in a folder; return what is shown."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\n. "$HOME/edit"\n')
    editor.chmod(0o755)

    def run(folder: str, *commands: str) -> str:
        done = subprocess.run(
            ["cadaver", f"{stage.url}/dav/{folder}"],
            input="\n".join([*commands, "quit", ""]),
            cwd=tmp_path,
            env=environment(HOME=str(tmp_path), EDITOR=str(editor), TMPDIR=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_put_and_get(cadaver: Cadaver, stage: Stage, name: str, tmp_path: Path) -> None:
    """A file is a message; a copy of the transcript with a line more is one, too."""
    (tmp_path / "in").write_text("one\n")
    said = cadaver("sessions/", f"put in {name}", f"get {name} out", "ls", f"cat {name}")
    assert "failed" not in said
    assert (tmp_path / "out").read_text() == ONE
    assert ONE in said
    (tmp_path / "out").write_text(ONE + "two\n")
    cadaver("sessions/", f"put out {name}")
    assert stage.asked(name) == ["one", "two"]


def test_edit(cadaver: Cadaver, stage: Stage, name: str, tmp_path: Path) -> None:
    """It locks, gets, lets an editor work, puts and unlocks; it puts nothing unless another second has begun."""
    later = 'touch -d "+5 seconds" "$1"\n'
    stage.say(name, "one")
    (tmp_path / "edit").write_text(f'echo two >> "$1"; {later}')
    assert "failed" not in cadaver("sessions/", f"edit {name}")
    assert stage.asked(name) == ["one", "two"]
    (tmp_path / "edit").write_text(f'sed -i s/one/ONE/ "$1"; {later}')
    assert "409 Conflict" in cadaver("sessions/", f"edit {name}")
    assert stage.asked(name) == ["one", "two"]
    assert stage.client.put(f"/dav/sessions/{name}", content=b"three\n").status_code == 204, "it is still locked"


def test_locks(cadaver: Cadaver, stage: Stage, name: str, tmp_path: Path) -> None:
    """Who holds the lock writes; others do not, until it is given back."""
    stage.say(name, "one")
    (tmp_path / "in").write_text("two\n")
    said = cadaver("sessions/", f"lock {name}", f"discover {name}", f"put in {name}")  # it leaves without unlocking
    assert "Timeout: 599 seconds" in said or "Timeout: 600 seconds" in said
    assert stage.asked(name) == ["one", "two"]
    assert stage.client.put(f"/dav/sessions/{name}", content=b"three\n").status_code == 423
    assert "423 Locked" in cadaver("sessions/", f"put in {name}")
    said = cadaver("sessions/", f"steal {name}", f"unlock {name}", f"put in {name}")
    assert "failed" not in said
    assert stage.asked(name) == ["one", "two", "two"]


def test_move_copy_delete(cadaver: Cadaver, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    said = cadaver("sessions/", f"move {name} {name}-b", f"copy {name}-b {name}-c", f"delete {name}-b")
    assert "failed" not in said
    assert {found for found in stage.sessions() if found.startswith(name)} == {f"{name}-c"}
    assert stage.text(f"{name}-c") == ONE
    stage.say(f"{name}-d", "two")
    assert "failed" in cadaver("sessions/", f"move {name}-c {name}-d")
    assert stage.text(f"{name}-d").startswith("User: two")


def test_settings_are_properties(cadaver: Cadaver, stage: Stage, name: str) -> None:
    stage.make(name)
    said = cadaver(
        "sessions/",
        "set namespace cfs:",
        f"propset {name} temperature 0.25",
        f"propget {name} temperature",
        f"propget {name} state",
        f"propset {name} system Be brief.",
    )
    assert "Value of temperature is: 0.25" in said
    assert "Value of state is: idle" in said
    assert stage.client.get(f"/v1/sessions/{name}/settings").json()["temperature"] == 0.25
    assert "409" in cadaver("sessions/", "set namespace cfs:", f"propset {name} temperature 99")
    assert "409" in cadaver("sessions/", "set namespace cfs:", f"propset {name} nonsense 1")
    assert "failed" not in cadaver("sessions/", "set namespace cfs:", f"propdel {name} temperature")
    assert stage.client.get(f"/v1/sessions/{name}/settings").json()["temperature"] != 0.25


def test_a_workspace(cadaver: Cadaver, stage: Stage, name: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("text")
    said = cadaver("workspaces/", f"mkcol {name}", f"cd {name}", "mkcol a", "cd a", "put in note", "copy note b", "ls")
    assert "failed" not in said
    assert stage.client.get(f"/v1/files/workspaces/{name}/a/b").text == "text"
    assert "failed" not in cadaver(f"workspaces/{name}/", "move a z", "get z/note out", "rmcol z")
    assert (tmp_path / "out").read_text() == "text"
    assert stage.client.get(f"/v1/files/workspaces/{name}/z/b").status_code == 404
