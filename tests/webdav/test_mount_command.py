"""`cfs mount --dav`: what is in the way is told, "ready" is said of what works, and nobody's bytes are lost (W1)."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cfs_fuse import davfs_mount
from cfs_fuse.checks import CannotMountError
from tests.fuse.support import GUARD_SECONDS, Stage, mounted, names, staging, until
from tests.server.support import environment, run_cfs, serving
from tests.webdav.davmount import kept_at, mounting, reads, reason_to_skip, unmount

needs_davfs = pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")


def mount(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `cfs mount` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "cfs_fuse", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        env=environment(COLUMNS="300", **env),
        check=False,
    )


def process_of(path: Path) -> int:
    """The process of davfs2 behind a mount."""
    return int(Path(f"/run/mount.davfs/{str(path)[1:].replace('/', '-')}.pid").read_text())


def folder_of(path: Path) -> Path:
    """The private folder of a mount: the arguments of its process say where the configuration is."""
    arguments = Path(f"/proc/{process_of(path)}/cmdline").read_bytes().decode().split("\0")
    options = dict(option.split("=") for option in arguments[arguments.index("-o") + 1].split(","))
    return Path(options["conf"]).parent


@pytest.mark.parametrize(("flags", "reason"), [(["--commit", "write"], "--commit"), (["--url", "http://h"], "--url")])
def test_options_that_make_no_sense_together(tmp_path: Path, flags: list[str], reason: str) -> None:
    done = mount(tmp_path, "--dav", "http://127.0.0.1:9", *flags)
    assert done.returncode == 2
    assert f"{reason} cannot be combined with --dav" in done.stderr


def test_a_url_in_the_environment_does_no_harm(tmp_path: Path) -> None:
    """`CFS_URL` is for other commands."""
    done = mount(tmp_path, "--dav", "http://127.0.0.1:9", CFS_URL="http://127.0.0.1:10")
    assert done.returncode == 1


@needs_davfs
def test_what_is_in_the_way_is_told(stage: Stage, tmp_path: Path) -> None:
    """Exit status 1 and the reason; nothing is mounted, and no file of ours is left."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        (mount(tmp_path / "missing", "--dav", stage.url), "does not exist"),
        (mount(full / "file", "--dav", stage.url), "is not a directory"),
        (mount(full, "--dav", stage.url), "is not empty"),
        (mount(empty, "--dav", "http://127.0.0.1:9"), "no server answers"),
        (mount(empty, "--dav", "nonsense"), "is not the URL"),
        (mount(empty, "--dav", stage.url.replace("//", "//cfs:secret@")), "can see a secret"),
        (mount(empty, "--dav", f"{stage.url}/dav/workspaces/nobody"), "does not exist"),
        (mount(empty, "--dav", f"{stage.url}/v1/sessions"), "/v1/sessions"),
        (mount(empty, "--background", "--dav", "http://127.0.0.1:9"), "no server answers"),
    ]
    for done, reason in cases:
        assert done.returncode == 1, done
        assert reason in done.stderr
        assert "Traceback" not in done.stderr
        assert "ready" not in done.stdout
    assert not mounted(empty)


@needs_davfs
def test_a_machine_without_davfs2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(davfs_mount, "_SYSTEM_PATH", "/nowhere")
    with pytest.raises(CannotMountError, match="davfs2 is not installed: install it"):
        davfs_mount.check_machine()


@needs_davfs
def test_somebody_who_is_not_root() -> None:
    code = "import os; from cfs_fuse import davfs_mount; os.setuid(65534); davfs_mount.check_machine()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert "start this as root" in done.stderr


@needs_davfs
def test_with_a_token(tmp_path: Path) -> None:
    """It goes to the server as the password, and stands in a file that only root can read, as long as the mount is."""
    tokens, secret, path = tmp_path / "tokens.toml", tmp_path / "secret", tmp_path / "m"
    path.mkdir()
    made = run_cfs("token", "create", "ann", "--grant", "/", "--tokens", str(tokens))
    secret.write_text(made.stdout)
    with serving("--engine", "scripted", "--tokens", str(tokens)) as server:
        without, wrong = mount(path, "--dav", server.url), mount(path, "--dav", server.url, CFS_TOKEN="wrong")  # noqa: S106
        assert (without.returncode, wrong.returncode) == (1, 1)
        assert "use --token-file or CFS_TOKEN" in without.stderr
        assert "is it the right one" in wrong.stderr
        with mounting(server.url, path, "--token-file", str(secret)) as here:
            (here / "hello").write_text("hi\n")
            reads(here / "hello", "User: hi\nAssistant: hi\n")
            folder = folder_of(path)
            assert made.stdout.strip() in (folder / "secrets").read_text()
            assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.stat().st_mode) & 0o007 == 0
            assert made.stdout.strip() not in Path(f"/proc/{process_of(path)}/cmdline").read_text()
        assert not folder.exists()


@needs_davfs
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_it_down_cleanly(stage: Stage, tmp_path: Path, number: signal.Signals) -> None:
    """What has been written is sent before; nothing of ours is left."""
    with mounting(f"{stage.url}/dav/sessions/", tmp_path / "m") as here:
        folder, process = folder_of(here.path), process_of(here.path)
        (here / f"last-{number}").write_text("hi\n")
        here.process.send_signal(number)
        assert here.ended() == 0
        assert not mounted(here.path)
        assert not folder.exists()
        assert not davfs_mount._serves(process)
        assert list(here.path.iterdir()) == []
    assert stage.asked(f"last-{number}") == ["hi"]
    assert here.log == []


@needs_davfs
def test_whoever_unmounts_it_ends_the_command(stage: Stage, tmp_path: Path) -> None:
    with mounting(stage.url, tmp_path / "m") as here:
        folder = folder_of(here.path)
        done = mount(here.path, "--dav", stage.url)
        assert done.returncode == 1
        assert "mounted" in done.stderr or "not empty" in done.stderr
        subprocess.run(["umount", "-i", str(here.path)], check=True)
        assert here.ended() == 0
        assert not folder.exists()


@needs_davfs
def test_in_the_background(stage: Stage, tmp_path: Path) -> None:
    """The command returns when the mount can be used; unmounting ends what is behind it."""
    path = tmp_path / "m"
    path.mkdir()
    try:
        done = mount(path, "--background", "--dav", stage.url)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"ready: {stage.url}/dav/sessions on ")
        assert os.path.ismount(path)
        folder = folder_of(path)
        subprocess.run(["umount", "-i", str(path)], check=True)
        until(lambda: not folder.exists())
    finally:
        unmount(path)


@needs_davfs
def test_one_that_is_in_use_is_taken_down(stage: Stage, tmp_path: Path) -> None:
    """What was written to a file that is still open is sent."""
    with mounting(stage.url, tmp_path / "m") as here:
        here.start("bash", "-c", "cd $M; echo hi > in-use; exec 3>>in-use; echo more >&3; echo open; read")
        program = here.programs[0]
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        here.process.terminate()
        assert here.ended() == 0
        assert not mounted(here.path)
    assert stage.asked("in-use") == ["hi", "more"]


@needs_davfs
@pytest.mark.parametrize("name", ["edited", "dir-edited"])  # davfs2 calls its listings so
def test_refused_bytes_are_kept(stage: Stage, tmp_path: Path, name: str) -> None:
    """An edit of a past that is out of date is in lost+found; the command says where it is when it ends."""
    stage.say(name, "one")
    with mounting(stage.url, tmp_path / "m") as here:
        with (here / name).open("w") as file:
            file.write("User: two\nAssistant: one\n")
            stage.say(name, "meanwhile")
        until(lambda: names(here / "lost+found"))
        here.process.terminate()
        assert here.ended() == 0
        until(lambda: here.log)
        kept = kept_at(here)
        assert kept is not None
        (left,) = kept.iterdir()
        assert left.read_text() == "User: two\nAssistant: one\n"
        assert names(kept.parent) == ["lost+found"]
    assert stage.asked(name) == ["one", "meanwhile"]


@needs_davfs
def test_what_could_not_be_sent_is_kept(tmp_path: Path) -> None:
    """The server has gone before the mount: what was written since is no copy of anything, what was read is one."""
    with staging() as stage:
        stage.say("read", "hi")
        ending = mounting(stage.url, tmp_path / "m")
        here = ending.__enter__()
        (here / "read").read_text()
    try:
        here.shell("echo unsent > $M/new")
        here.process.terminate()
        assert here.ended() == 0
        until(lambda: here.log)
        kept = kept_at(here)
        assert kept is not None
        assert [file.read_text() for file in kept.iterdir()] == ["unsent\n"]
    finally:
        ending.__exit__(None, None, None)


@needs_davfs
def test_a_killed_davfs2_is_told_and_cleaned_up(stage: Stage, tmp_path: Path) -> None:
    """The directory is free again, also for another mount; its copies are kept, as nobody knows what they are."""
    with mounting(stage.url, tmp_path / "m") as here:
        os.kill(process_of(here.path), signal.SIGKILL)
        assert here.ended() == 1
        assert not mounted(here.path)
        until(lambda: here.log)
        assert "mount.davfs has ended" in "".join(here.log)
    with mounting(stage.url, tmp_path / "m") as again:
        assert "lost+found" in names(again.path)


@needs_davfs
def test_files_belong_to_whom_the_directory_belongs(stage: Stage, tmp_path: Path) -> None:
    """Others are let in with --allow-other only."""
    path = tmp_path / "m"
    path.mkdir()
    os.chown(path, 1, 1)
    stage.say("owned", "hi")
    with mounting(stage.url, path) as here:
        assert (here.path.stat().st_uid, (here / "owned").stat().st_uid) == (1, 1)
        assert stat.S_IMODE(here.path.stat().st_mode) == 0o700
    with mounting(stage.url, path, "--allow-other") as here:
        assert stat.S_IMODE(here.path.stat().st_mode) == 0o777
        assert stat.S_IMODE((here / "owned").stat().st_mode) == 0o666


@pytest.mark.parametrize(("seconds", "refresh"), [(0.01, 0), (0.49, 0), (0.5, 2), (1.3, 4), (3.0, 7)])
def test_long_listings_are_believed_for_longer(seconds: float, refresh: int) -> None:
    """Else `ls -l` would ask for all of them again for each of them."""
    assert davfs_mount._refresh(seconds) == refresh
