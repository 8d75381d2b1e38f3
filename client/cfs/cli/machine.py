"""What of this machine matters to CFS: Python, packages, libfuse, davfs2, disk space (C10)."""

import ctypes.util
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path

from cfs.cli.checks import Check, fine, missing, needed

_DISTRIBUTION = "cfs-local"
_GROUP = "cfs.commands"
_EXTRAS = {"server": "cfs serve", "fuse": "cfs mount", "webdav": "/dav", "agents": "cfs agent"}
_NEEDED_EXTRAS = {"server"}
_PYTHON = (3, 11)
_LEAST_BYTES = 1 << 30
_DEVICE = Path("/dev/fuse")


def checks() -> Iterator[Check]:
    """Look at everything."""
    yield _python()
    yield from map(_extra, _EXTRAS)
    yield _libfuse()
    yield _device()
    yield _davfs()
    yield _disk()


def mount_obstacle() -> str | None:
    """Say in one line why there can be no mount on this machine; None when there can."""
    if not any(entry.name == "fuse" for entry in entry_points(group=_GROUP)):
        return "this installation has no `cfs mount`"
    for check in (_extra("fuse"), _libfuse(), _device()):
        if check.status != "ok":
            return f"{check.found}: {check.advice}"
    return None


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _PYTHON:
        return needed("Python", found, "CFS needs Python 3.11 or newer")
    return fine("Python", found)


def _extra(name: str) -> Check:
    """Whether the packages of an extra are installed, by their metadata: nothing is imported."""
    what = f"packages for {_EXTRAS[name]}"
    lacking = [package for package in _packages(name) if not _is_installed(package)]
    if not lacking:
        return fine(what, "installed")
    advice = f"pip install '{_DISTRIBUTION}[{name}]'"
    report = needed if name in _NEEDED_EXTRAS else missing
    return report(what, f"{', '.join(lacking)} not installed", advice)


def _packages(extra: str) -> list[str]:
    found = []
    for requirement in requires(_DISTRIBUTION) or ():
        package, _, marker = requirement.partition(";")
        name = re.match(r"[A-Za-z0-9._-]+", package)
        if name and re.search(rf"extra == ['\"]{extra}['\"]", marker) and "sys_platform" not in marker:
            found.append(name[0])
    return found


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _libfuse() -> Check:
    for name in ("fuse3", "fuse"):
        if library := ctypes.util.find_library(name):
            return fine("libfuse", library)
    return missing("libfuse", "not found", "install fuse3 (Debian: apt install fuse3), for the mount")


def _device() -> Check:
    what = str(_DEVICE)
    if not _DEVICE.exists():
        return missing(
            what,
            "not there",
            "modprobe fuse; in a container, --device /dev/fuse --cap-add SYS_ADMIN",
        )
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return missing(what, "may not be opened by you", f"chmod 0666 {_DEVICE}, as root")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return missing(what, "fusermount3 is missing", "install fuse3, whose fusermount3 ordinary users need")
    return fine(what, "may be opened")


def _davfs() -> Check:
    path = shutil.which("mount.davfs") or shutil.which("mount.davfs", path="/sbin:/usr/sbin")
    if path:
        return fine("davfs2", path)
    return missing("davfs2", "not found", "install davfs2 if you want to mount over WebDAV instead of FUSE")


def _disk() -> Check:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    found = f"{free / (1 << 30):.1f} GiB free in {folder}"
    if free < _LEAST_BYTES:
        return missing("disk space", found, "free some: workspaces and models need it")
    return fine("disk space", found)
