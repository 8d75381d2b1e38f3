"""Checks whether this machine can mount, and explains what is missing; also used by `cfs doctor` (C10)."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cfs.cli.base.checks import Check, fine, missing

DEVICE = Path("/dev/fuse")


class CannotMountError(Exception):
    """Mounting is not possible; the message explains why and how to fix it."""

    def __init__(self, state: str, advice: str = "") -> None:
        super().__init__(f"{state}: {advice}" if advice else state)
        self.found = state
        self.advice = advice


def checks() -> Iterator[Check]:
    """Check what a mount needs on this machine."""
    for name, look in (("libfuse", check_libfuse), (str(DEVICE), check_device)):
        try:
            yield fine(name, look())
        except CannotMountError as error:
            yield missing(name, error.found, error.advice)


def check_libfuse() -> str:
    """Load libfuse and its binding and return the version. Raises `CannotMountError`."""
    try:
        from cfs_fuse.kernel import VERSION
    except ImportError as error:
        raise CannotMountError(str(error), "pip install 'cfs-local[fuse]'") from None
    except (OSError, AttributeError) as error:
        raise CannotMountError(
            f"libfuse cannot be loaded ({error})", "install fuse3 (Debian: apt install fuse3)"
        ) from None
    return f"version {'.'.join(map(str, VERSION))}"


def check_device() -> str:
    """Check that this user may open the FUSE device; raises `CannotMountError`."""
    if not DEVICE.exists():
        raise CannotMountError(
            f"there is no {DEVICE}",
            "load the module (modprobe fuse), or give it to the container (--device /dev/fuse --cap-add SYS_ADMIN)",
        )
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        raise CannotMountError(f"you may not open {DEVICE}", f"its mode should be 0666 (chmod 0666 {DEVICE}, as root)")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        raise CannotMountError("fusermount3 is missing; users other than root need it", "install fuse3")
    return "may be opened"


def check_directory(directory: Path) -> None:
    """Raise `CannotMountError` unless the directory exists and is empty. A dead mount on it is detached first."""
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        raise CannotMountError(f"{directory} does not exist: mkdir {directory}") from None
    except NotADirectoryError:
        raise CannotMountError(f"{directory} is not a directory") from None
    except PermissionError:
        raise CannotMountError(f"you may not read {directory}") from None
    except OSError as error:
        if error.errno != errno.ENOTCONN or not _is_dead(directory):
            raise CannotMountError(f"{directory} cannot be read: {error.strerror}") from None
        detach(directory)
        entries = list(directory.iterdir())
    if os.path.ismount(directory):
        raise CannotMountError(
            f"something is mounted on {directory} already: unmount it (`fusermount3 -u {directory}`), or use another"
            " directory"
        )
    if entries:
        raise CannotMountError(f"{directory} is not empty: its files would be hidden; use another directory")
    if not os.access(directory, os.W_OK):
        raise CannotMountError(f"mounting on {directory} needs write permission on it")


def detach(directory: Path) -> None:
    """Unmount, even if the mount is in use or its process is dead; raises `CannotMountError`."""
    commands = [["fusermount3", "-u", "-z", "--", str(directory)], ["umount", "-l", "--", str(directory)]]
    reasons = []
    for command in commands:
        if shutil.which(command[0]) is None:
            continue
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
        if result.returncode == 0:
            return
        reasons.append(result.stderr.strip())
    raise CannotMountError(f"the dead mount on {directory} cannot be detached: {'; '.join(reasons)}")


def _is_dead(directory: Path) -> bool:
    """Whether the process of a mount has ended: then even `stat` fails, unlike when only the server is unreachable."""
    try:
        directory.stat()
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False
