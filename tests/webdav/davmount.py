"""A real mount by davfs2, as `cfs mount --dav` makes it."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfs_fuse.checks import CannotMountError, check_device
from cfs_fuse.davfs_mount import check_machine
from tests.fork_server import Program
from tests.fuse.support import GUARD_SECONDS, Mount, mounted, until
from tests.server.support import environment


def reason_to_skip() -> str | None:
    """Say why davfs2 cannot mount here; None where it can."""
    try:
        check_machine()
        check_device()
    except CannotMountError as error:
        return str(error)
    return None


@contextmanager
def mounting(url: str, path: Path, *flags: str, **env: str) -> Iterator[Mount]:
    """Mount a WebDAV folder; whatever happens, nothing stays mounted and no process is left."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    process = Program(
        [sys.executable, "-m", "cfs_fuse", str(path), "--dav", url, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    )
    assert process.stdout is not None
    mount = Mount(path, process)
    reader = threading.Thread(target=lambda: mount.log.extend(process.stderr or ()))
    reader.start()
    try:
        line = process.stdout.readline()
        assert line.startswith("ready"), "".join(mount.log)
        yield mount
    finally:
        mount.end_programs()
        process.terminate()
        try:
            process.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
        unmount(path)
        _remove_kept(mount)


def unmount(path: Path) -> None:
    """Take a mount down, if it is there."""
    if mounted(path):
        subprocess.run(["umount", "-i", "-f", "-l", str(path)], check=False, capture_output=True)


def kept_at(mount: Mount) -> Path | None:
    """Where the command said that it kept something."""
    said = [line.rpartition(" ")[2].strip() for line in mount.log if "the server does not have" in line]
    return Path(said[0]) if said else None


def reads(path: Path, text: str) -> None:
    """Wait until a file reads so: davfs2 asks the server again a second after its last answer (see docs/webdav.md)."""
    seen: list[str] = []

    def same() -> bool:
        with contextlib.suppress(OSError):
            seen.append(path.read_text(encoding="utf-8"))
        return seen[-1:] == [text]

    try:
        until(same)
    except AssertionError:
        raise AssertionError(f"{path.name} reads {seen[-1:]}, not {text!r}") from None


def _remove_kept(mount: Mount) -> None:
    found = kept_at(mount)
    if found is not None and found.parent.name.startswith("cfs-"):
        subprocess.run(["rm", "-rf", str(found.parent)], check=True)
