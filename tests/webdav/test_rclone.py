"""rclone, as docs/webdav.md says to use it, and what keeps a session where it is used otherwise (W1)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fuse.support import GUARD_SECONDS, Stage, names, until
from tests.server.support import environment
from tests.webdav import davmount

pytestmark = pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")

FLAGS = ("--ignore-size", "--ignore-checksum")
ONE = "User: one\nAssistant: one\n"


@dataclass(frozen=True)
class Rclone:
    """rclone with a remote `:webdav:` and without retries."""

    url: str
    folder: Path

    def __call__(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            ["rclone", *arguments, "--retries", "1", "--low-level-retries", "1"],
            input=text,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            check=False,
        )

    def done(self, *arguments: str, text: str | None = None) -> str:
        """Run what must succeed."""
        done = self(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        """Its environment: the remote, and no configuration of somebody's."""
        return environment(
            RCLONE_CONFIG=os.devnull, RCLONE_WEBDAV_URL=self.url, RCLONE_WEBDAV_VENDOR="other", HOME=str(self.folder)
        )

    @contextmanager
    def mounted(self, *flags: str) -> Iterator[Path]:
        """Mount the remote."""
        path = self.folder / "mount"
        path.mkdir()
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(["rclone", "mount", ":webdav:", str(path), *flags], env=self.env, stderr=log)
            try:
                until(lambda: os.path.ismount(path), "rclone does not mount")
                yield path
            finally:
                davmount.unmount(path)
                try:
                    process.wait(GUARD_SECONDS)
                finally:
                    process.kill()
                    process.wait()


@pytest.fixture
def rclone(stage: Stage, tmp_path: Path) -> Rclone:
    return Rclone(f"{stage.url}/dav/sessions", tmp_path)


def test_messages_go_in_and_transcripts_come_out(rclone: Rclone, stage: Stage, name: str) -> None:
    """A file is a message; what was added to a copy is the next one."""
    (rclone.folder / name).write_text("one\n")
    rclone.done("copy", *FLAGS, name, ":webdav:")
    assert rclone.done("cat", f":webdav:{name}") == ONE
    rclone.done("copy", f":webdav:{name}", "out")
    copy = rclone.folder / "out" / name
    assert copy.read_text() == ONE
    copy.write_text(ONE + "two\n")
    rclone.done("copy", *FLAGS, "--ignore-times", str(copy), ":webdav:")
    rclone.done("rcat", *FLAGS, f":webdav:{name}", text="three\n")
    assert stage.asked(name) == ["one", "two", "three"]


def test_reading_waits_for_the_reply(rclone: Rclone, stage: Stage, name: str) -> None:
    with stage.held():
        stage.say(name, "one", wait=False)
        reading = subprocess.Popen(
            ["rclone", "cat", f":webdav:{name}"], env=rclone.env, stdout=subprocess.PIPE, text=True
        )
        stage.until_awaited(name)
        assert reading.poll() is None
    assert reading.communicate(timeout=GUARD_SECONDS)[0].startswith("User: one\n")
    assert stage.text(name) == ONE


def test_sessions_are_named_anew_copied_and_deleted(rclone: Rclone, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    rclone.done("moveto", f":webdav:{name}", f":webdav:{name}-b")
    rclone.done("copyto", f":webdav:{name}-b", f":webdav:{name}-c")
    assert stage.text(f"{name}-c") == ONE
    rclone.done("deletefile", f":webdav:{name}-b")
    assert {found for found in stage.sessions() if found.startswith(name)} == {f"{name}-c"}


@pytest.mark.parametrize("there", [False, True])
def test_without_the_flags_the_session_survives(rclone: Rclone, stage: Stage, name: str, *, there: bool) -> None:
    """rclone finds another size than it has sent, and deletes; it is refused, fails at once, and nothing is lost."""
    if there:
        stage.say(name, "one")
    (rclone.folder / name).write_text("two\n")
    done = rclone("copy", name, ":webdav:")
    assert done.returncode == 1
    assert "sizes differ" in done.stderr
    assert stage.asked(name) == [*(["one"] * there), "two"]


@pytest.mark.skipif(davmount.reason_to_skip() is not None, reason=davmount.reason_to_skip() or "")
def test_a_mount(rclone: Rclone, stage: Stage, name: str) -> None:
    """`>` adds a message, as on every face; `>>` fails and does no harm."""
    with rclone.mounted(*FLAGS, "--vfs-cache-mode", "off", "--dir-cache-time", "1s") as path:
        for text in ("one", "two"):
            subprocess.run(["bash", "-c", f"echo {text} > {path / name}"], check=True)
        until(lambda: stage.asked(name) == ["one", "two"])
        assert subprocess.run(["bash", "-c", f"echo three >> {path / name}"], check=False).returncode == 1
        assert stage.asked(name) == ["one", "two"]
        assert name in names(path)
        assert (path / name).read_text() == stage.text(name)
        stage.make(f"{name}-gone")
        until(lambda: f"{name}-gone" in names(path))
        (path / f"{name}-gone").unlink()
    assert f"{name}-gone" not in stage.sessions()


def test_a_workspace_is_copied_both_ways(rclone: Rclone, stage: Stage, name: str) -> None:
    """Files are what they were, so nothing has to be ignored."""
    stage.client.request("MKCOL", f"/dav/workspaces/{name}")
    here = Rclone(f"{stage.url}/dav/workspaces/{name}", rclone.folder)
    tree = rclone.folder / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "数据").write_bytes(os.urandom(1 << 20))
    (tree / "empty").touch()
    here.done("copy", "tree", ":webdav:")
    here.done("copy", ":webdav:", "back")
    assert "0 differences" in here("check", "back", "tree").stderr
    (tree / "empty").unlink()
    here.done("sync", "tree", ":webdav:")
    assert here.done("lsf", "-R", ":webdav:").split() == ["deep/", "deep/er/", "deep/er/数据"]
