"""Directories of other programs, of any depth and kind: no walk ends in an error, and none leaves the file system."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cfs_filesystem import ConflictError, DiskFileSystem, Grant, InvalidPathError, Walk
from cfs_filesystem._paths import MAX_DEPTH
from cfs_filesystem._removing import remove_tree
from tests.disks import Mount, mount
from tests.odd_trees import BEYOND, ODD_TREES, emptied, nest

__all__ = ["emptied", "mount"]
EVERYTHING = Grant(prefix="/", ops={"list", "file", "read", "write", "delete"})


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def walked(folder: Path, limit: int | None = None) -> tuple[list[str], bool]:
    """The files below a folder, and whether all of it was read."""
    with opened(folder) as root:
        walk = Walk(root, lambda _: True, limit=limit)
        return ["/".join(parts) for parts, _, _ in walk], walk.complete


@pytest.mark.parametrize("make", ODD_TREES.values(), ids=ODD_TREES)
def test_a_file_beside_an_odd_tree_is_listed_and_written(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    disk = DiskFileSystem(tmp_path)
    handle = disk.create_handle([EVERYTHING])
    handle.write("/plain.txt", "here")
    assert "/plain.txt" in [meta["path"] for meta in handle.list()]
    assert handle.read_file("/plain.txt") == "here"
    disk.close()


def test_a_walk_ends_at_its_depth_and_says_so(tmp_path: Path) -> None:
    nest(tmp_path, MAX_DEPTH - 1)
    assert walked(tmp_path) == (["d/" * (MAX_DEPTH - 1) + "end.txt"], True)
    other = tmp_path / "other"
    other.mkdir()
    nest(other)
    assert walked(other) == ([], False)


def test_a_limit_counts_names_in_their_order(tmp_path: Path) -> None:
    for name in "cab":
        (tmp_path / name).touch()
    assert walked(tmp_path, 3) == (["a", "b", "c"], True)
    files, complete = walked(tmp_path, 2)
    assert (len(files), complete) == (2, False)


def test_a_mounted_file_system_is_not_entered(tmp_path: Path, mount: Mount) -> None:
    (tmp_path / "own.txt").touch()
    other = mount("other", "-t", "tmpfs", "none")
    (other / "foreign.txt").touch()
    assert walked(tmp_path) == (["own.txt"], False)
    disk = DiskFileSystem(tmp_path)
    assert [meta["path"] for meta in disk.create_handle([EVERYTHING]).list()] == ["/own.txt"]
    disk.close()


def test_a_listing_leaves_out_directories_that_are_not_entered(tmp_path: Path) -> None:
    """Which ones these are is asked each time; what is in them is read, and listed where the listing begins there."""
    for name in ("src/a", "built/b", "src/built/c/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    closed = {"built"}
    disk = DiskFileSystem(tmp_path, entered=lambda: lambda parts: parts[-1] not in closed)
    handle = disk.create_handle([EVERYTHING])

    def listed(prefix: str = "/") -> list[str]:
        return [meta["path"] for meta in handle.list(prefix)]

    assert listed() == ["/src/a"]
    assert listed("/src/built") == ["/src/built/c/d"]
    assert handle.read_file("/built/b") == "built/b"
    closed.clear()
    assert listed() == ["/built/b", "/src/a", "/src/built/c/d"]
    disk.close()


def test_directories_that_vanish_during_a_walk_are_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with opened(tmp_path) as root:
        walk = Walk(root, lambda _: True)
        files = iter(walk)
        seen = next(files)[0][0]
        shutil.rmtree(tmp_path / ("a" if seen == "b" else "b"))
        assert list(files) == []
    assert not walk.complete


@pytest.mark.parametrize("operation", ["write", "make_directory", "move"])
def test_a_path_that_is_too_deep_is_refused_at_creation(tmp_path: Path, operation: str) -> None:
    disk = DiskFileSystem(tmp_path)
    handle = disk.create_handle([EVERYTHING])
    handle.write("/source", "kept")
    path = "/d" * (MAX_DEPTH + 1)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: handle.write(path, "x"),
        "make_directory": lambda: handle.make_directory(path),
        "move": lambda: handle.move("/source", path),
    }
    with pytest.raises(InvalidPathError, match="too deep"):
        calls[operation]()
    assert [meta["path"] for meta in handle.list()] == ["/source"]
    disk.close()


def test_a_file_does_not_replace_directories_beyond_the_depth(tmp_path: Path) -> None:
    """Whether they are empty is not looked at, so they count as not empty."""
    (tmp_path / "a").mkdir()
    nest(tmp_path / "a")
    disk = DiskFileSystem(tmp_path)
    with pytest.raises(ConflictError, match="is a directory"):
        disk.create_handle([EVERYTHING]).write("/a", "x")
    disk.close()
    assert (tmp_path / "a").is_dir()


def test_leftovers_of_any_depth_are_removed_at_the_start(tmp_path: Path) -> None:
    left = tmp_path / ".cfs-write-left"
    left.mkdir()
    nest(left)
    assert sys.getrecursionlimit() < BEYOND
    DiskFileSystem(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_removing_a_tree_spares_what_is_mounted_in_it(tmp_path: Path, mount: Mount) -> None:
    (tmp_path / "tree").mkdir()
    other = mount("tree/other", "-t", "tmpfs", "none")
    (other / "kept.txt").touch()
    with opened(tmp_path) as root, pytest.raises(OSError, match=r"cross-device|busy"):
        remove_tree(root, "tree")
    assert (other / "kept.txt").exists()
