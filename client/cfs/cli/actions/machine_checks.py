"""Checks of this machine: Python, packages, davfs2, disk space, mounting (C10)."""

import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires, version

from cfs.cli.base.checks import GROUP, Check, fine, missing, needed

_DISTRIBUTION = "cfs-local"
_EXTRAS = {"server": "cfs serve", "fuse": "cfs mount", "webdav": "/dav", "agents": "cfs agent"}
_NEEDED_EXTRAS = {"server"}
_PYTHON = (3, 11)
_LEAST_BYTES = 1 << 30


def machine_checks() -> Iterator[Check]:
    """Run all checks of this machine."""
    yield _python()
    yield from map(_extra, _EXTRAS)
    yield _davfs()
    yield _disk()


def mount_obstacle() -> str | None:
    """Return in one line why this machine cannot mount; None if it can."""
    for entry in entry_points(group=GROUP, name="fuse"):
        try:
            checks = entry.load()()
        except ImportError as error:
            return f"{error}: pip install '{_DISTRIBUTION}[fuse]'"
        return next((f"{check.found}: {check.advice}" for check in checks if check.status != "ok"), None)
    return "this installation has no `cfs mount`"


def _python() -> Check:
    running = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _PYTHON:
        return needed("Python", running, "CFS needs Python 3.11 or newer")
    return fine("Python", running)


def _extra(name: str) -> Check:
    """Return whether the packages of an extra are installed, by their metadata, without importing them."""
    what = f"packages for {_EXTRAS[name]}"
    lacking = [package for package in _packages(name) if not _is_installed(package)]
    if not lacking:
        return fine(what, "installed")
    advice = f"pip install '{_DISTRIBUTION}[{name}]'"
    report = needed if name in _NEEDED_EXTRAS else missing
    return report(what, f"{', '.join(lacking)} not installed", advice)


def _packages(extra: str) -> list[str]:
    packages = []
    for requirement in requires(_DISTRIBUTION) or ():
        package, _, marker = requirement.partition(";")
        name = re.match(r"[A-Za-z0-9._-]+", package)
        if name and re.search(rf"extra == ['\"]{extra}['\"]", marker) and "sys_platform" not in marker:
            packages.append(name[0])
    return packages


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _davfs() -> Check:
    path = shutil.which("mount.davfs") or shutil.which("mount.davfs", path="/sbin:/usr/sbin")
    if path:
        return fine("davfs2", path)
    return missing("davfs2", "not found", "install davfs2 if you want to mount over WebDAV instead of FUSE")


def _disk() -> Check:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    space = f"{free / (1 << 30):.1f} GiB free in {folder}"
    if free < _LEAST_BYTES:
        return missing("disk space", space, "free some space: programs put large files there")
    return fine("disk space", space)
