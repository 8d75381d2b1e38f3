"""Directories as other programs leave them: deep, wide, in circles, with names and files of all kinds."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cfs_filesystem._removing import remove_tree

BEYOND = 1_200
"""Levels of a tree at which programs that recurse end."""


@pytest.fixture(autouse=True)
def emptied(tmp_path: Path) -> Iterator[None]:
    """Remove deep trees after the test, in a module that imports this: the removal by pytest recurses."""
    yield
    root = os.open(tmp_path, os.O_RDONLY)
    for path in tmp_path.iterdir():
        if path.is_dir() and not path.is_symlink():
            remove_tree(root, path.name)
    os.close(root)


_LEASED = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
sys.stdin.read()
"""


def nest(folder: Path, levels: int = BEYOND, *, file: bool = True) -> None:
    """Make directories in directories, with a file in the last one unless not `file`."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    if file:
        os.close(os.open("end.txt", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def widen(folder: Path) -> None:
    """Make many empty directories."""
    for number in range(3_000):
        (folder / f"w{number}").mkdir()


def name_oddly(folder: Path) -> None:
    """Make files with long names and with names that are no text."""
    for name in (b"x" * 255, "\u4e2d".encode() * 85, b"\xff\xfe", b"a\nb", b"back\\slash", b"-rf", b" "):
        (folder / os.fsdecode(name)).touch()


def link_in_circles(folder: Path) -> None:
    """Make links to the directory itself, to each other, and to nowhere."""
    (folder / "self").symlink_to(".")
    (folder / "up").symlink_to("..")
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    (folder / "nowhere").symlink_to("/nonexistent")


def add_special_files(folder: Path) -> None:
    """Make a named pipe, on which reading waits, and a directory that only root may enter."""
    os.mkfifo(folder / "pipe")
    (folder / "closed").mkdir(mode=0)


ODD_TREES: dict[str, Callable[[Path], None]] = {
    "deep": nest,
    "wide": widen,
    "names": name_oddly,
    "circles": link_in_circles,
    "special": add_special_files,
}


@contextmanager
def lease(file: Path) -> Iterator[None]:
    """Let another process have a lease on a file: to open it without waiting fails until the lease is given back."""
    command = [sys.executable, "-c", _LEASED, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == b"leased\n"
            yield
        finally:
            process.stdin.close()
            process.wait()


def may_lease() -> bool:
    """Whether this system has leases."""
    return hasattr(fcntl, "F_SETLEASE")
