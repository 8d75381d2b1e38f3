"""`cfs mount`: what is in the way is told in a sentence, and "ready" is only said of what is mounted (F8, C10)."""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cfs.cli.app import build
from tests.fuse.support import GUARD_SECONDS, Stage, mounted, mounting, reason_to_skip, staging, unmount, until
from tests.server.support import environment

needs_fuse = pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")
NOBODY = 65_534


def mount(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `cfs mount` to its end."""
    command = [sys.executable, "-m", "cfs_fuse", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=GUARD_SECONDS, env=environment(**env), check=False
    )


def test_command_is_one_of_cfs() -> None:
    """`cfs mount --help` says what it does."""
    program = build([EntryPoint("fuse", "cfs_fuse.cli:app", "cfs.commands")])
    shown = CliRunner().invoke(program, ["mount", "--help"])
    assert shown.exit_code == 0
    assert "sessions as files" in shown.output


@needs_fuse
def test_what_is_in_the_way_is_told(stage: Stage, tmp_path: Path) -> None:
    """Exit status 1 (2 for wrong usage) and the reason; nothing is mounted."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        (mount(tmp_path / "missing", "--url", stage.url), "does not exist"),
        (mount(full / "file", "--url", stage.url), "is not a directory"),
        (mount(full, "--url", stage.url), "is not empty"),
        (mount(empty, "--url", "http://127.0.0.1:9"), "no server answers"),
        (mount(empty, "--url", "nonsense"), "is not the URL"),
        (mount(empty, "--url", stage.url, FUSE_LIBRARY_PATH="nowhere.so"), "libfuse cannot be loaded"),
        (mount(empty, "--background", "--url", "http://127.0.0.1:9"), "no server answers"),
    ]
    usage = mount(empty, "--url", stage.url, "--token-file", tmp_path / "none", COLUMNS="300")
    for done, reason, code in [*((done, reason, 1) for done, reason in cases), (usage, "No such file", 2)]:
        assert done.returncode == code, done
        assert reason in done.stderr
        assert "Traceback" not in done.stderr
        assert "ready" not in done.stdout
    assert not mounted(empty)


@needs_fuse
def test_mount_over_a_mount_is_refused(stage: Stage, tmp_path: Path) -> None:
    """The first one goes on."""
    with mounting(stage.url, tmp_path / "m") as first:
        done = mount(first.path, "--url", stage.url)
        assert done.returncode == 1
        assert "mounted" in done.stderr or "not empty" in done.stderr
        assert list(first.path.iterdir()) is not None


@needs_fuse
def test_background(stage: Stage, tmp_path: Path) -> None:
    """The command returns when the mount is ready; unmounting ends the process behind it."""
    path = tmp_path / "m"
    path.mkdir()
    try:
        done = mount(path, "--background", "--log-file", tmp_path / "log", CFS_URL=stage.url)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("ready: ")
        assert os.path.ismount(path)
        (path / "from-behind").write_text("hi\n")
        assert (path / "from-behind").read_text() == "User: hi\nAssistant: hi\n"
    finally:
        unmount(path)
    until(lambda: not _serves(path))


@needs_fuse
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_ordinary_user() -> None:
    """A user who may open the device mounts by fusermount3, writes, reads and unmounts."""
    script = (
        'set -e; mount --make-rprivate /; if [ -n "$HIDDEN" ]; then mkdir $T/keep; mount --bind $BASE $T/keep; '
        "mount -t tmpfs -o mode=755 none $HIDDEN; mkdir -p $BASE; mount --bind $T/keep $BASE; fi; "
        "mknod $T/fuse c 10 229; chmod 666 $T/fuse; mount --bind $T/fuse /dev/fuse; "
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups bash -c '"
        '"$PYTHON" -m cfs_fuse $T/m --url $URL --background; '
        "echo hi > $T/m/f; cat $T/m/f; stat -c %u $T/m/f; fusermount3 -u $T/m; ls -A $T/m'"
    )
    with tempfile.TemporaryDirectory() as name, staging() as stage:  # pytest's own folders are nobody else's
        path = Path(name)
        path.chmod(0o755)
        (path / "m").mkdir()
        os.chown(path / "m", NOBODY, NOBODY)
        base = Path(sys.base_prefix)
        hidden = [str(above) for above in reversed(base.parents) if not above.stat().st_mode & 1][:1]
        env = environment(HIDDEN=" ".join(hidden), BASE=str(base))
        env |= {"T": str(path), "URL": stage.url, "PYTHON": sys.executable, "HOME": str(path)}
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            env=env,
            check=False,
        )
    assert done.stdout.splitlines()[1:] == ["User: hi", "Assistant: hi", str(NOBODY)], done.stderr


def _serves(path: Path) -> bool:
    """Whether a process still runs with this path among its arguments."""
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(path).encode() in found.read_bytes():
                return True
        except OSError:
            continue
    return False


@needs_fuse
def test_ready_means_mounted(stage: Stage, tmp_path: Path) -> None:
    """When the word is there, writes do not land on the disk."""
    with mounting(stage.url, tmp_path / "m") as here:
        (here / "ready-test").touch()
        assert "ready-test" in stage.sessions()
    assert list((tmp_path / "m").iterdir()) == []
