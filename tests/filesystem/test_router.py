"""Several file systems as one (G6)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cfs_filesystem import (
    ConflictError,
    DiskFileSystem,
    EntryMeta,
    FileSystemBase,
    Grant,
    InMemoryFileSystem,
    InvalidPathError,
    NotFoundError,
    RouterFileSystem,
)
from tests.filesystem.support import everything, grant, paths


@pytest.fixture
def mounts(tmp_path: Path) -> dict[str, FileSystemBase]:
    return {
        "/sessions/": InMemoryFileSystem(["/sessions/"]),
        "/workspaces/": DiskFileSystem(tmp_path, prefix="/workspaces/"),
        "/workspaces/scratch/": InMemoryFileSystem(),
    }


def test_each_path_goes_to_the_longest_prefix(mounts: dict[str, FileSystemBase], tmp_path: Path) -> None:
    handle = everything(RouterFileSystem(mounts))
    for path in ("/sessions/main", "/workspaces/main/a.txt", "/workspaces/scratch/x", "/workspaces/scratchy"):
        handle.write(path, path)
    assert {mount: paths(everything(filesystem).list()) for mount, filesystem in mounts.items()} == {
        "/sessions/": ["/sessions/main"],
        "/workspaces/": ["/workspaces/main/a.txt", "/workspaces/scratchy"],
        "/workspaces/scratch/": ["/workspaces/scratch/x"],
    }
    assert (tmp_path / "main" / "a.txt").read_text() == "/workspaces/main/a.txt", "the prefix is the root"
    assert paths(handle.list()) == [
        "/sessions/main",
        "/workspaces/main/a.txt",
        "/workspaces/scratch/x",
        "/workspaces/scratchy",
    ]
    assert paths(handle.list("/workspaces/s")) == []
    assert paths(handle.list("/workspaces/scratch")) == ["/workspaces/scratch/x"]
    assert paths(handle.list("/sessions")) == ["/sessions/main"]
    assert paths(handle.list("/workspaces/main/a.txt")) == ["/workspaces/main/a.txt"]
    assert handle.read_file("/workspaces/scratch/x") == "/workspaces/scratch/x"
    assert handle.read_re("/sessions/main", "m.*") == ["main"]
    handle.delete("/sessions/main")
    with pytest.raises(NotFoundError):
        handle.file("/sessions/main")


def test_what_a_mount_hides_is_not_there(mounts: dict[str, FileSystemBase]) -> None:
    """Neither listed nor reached, although the file system behind still has it."""
    everything(mounts["/workspaces/"]).write("/workspaces/scratch/hidden", "x")
    router = RouterFileSystem(mounts)
    handle = everything(router)
    assert handle.list() == []
    with pytest.raises(NotFoundError):
        handle.file("/workspaces/scratch/hidden")
    index = router._snapshot_impl([])
    assert (list(index), len(index)) == ([], 0)


def test_a_mount_point_cannot_become_an_entry() -> None:
    handle = everything(RouterFileSystem({"/": InMemoryFileSystem(), "/a/b/": InMemoryFileSystem()}))
    for path in ("/a", "/a/b"):
        with pytest.raises(ConflictError):
            handle.write(path, "x")
    handle.write("/a/bc", "x")
    handle.write("/a/b/c", "x")


def test_paths_outside_of_all_mounts_are_no_paths(mounts: dict[str, FileSystemBase]) -> None:
    handle = everything(RouterFileSystem(mounts))
    for path in ("/other", "/sessions", "/sessionsx/a"):
        with pytest.raises(InvalidPathError):
            handle.write(path, "x")
        with pytest.raises(InvalidPathError):
            handle.file(path)


def test_a_mount_must_be_a_prefix_of_its_file_system() -> None:
    for prefix in ("/b/", "/ab/", "/"):
        with pytest.raises(InvalidPathError, match="has no entries there"):
            RouterFileSystem({prefix: InMemoryFileSystem(["/a/"])})
    with pytest.raises(InvalidPathError, match="does not end"):
        RouterFileSystem({"/a": InMemoryFileSystem()})
    RouterFileSystem({"/a/b/": InMemoryFileSystem(["/a/"])})


def test_a_listing_asks_only_where_something_is_granted(mounts: dict[str, FileSystemBase]) -> None:
    """A caller with one small grant does not pay for a walk through the disk."""

    class Broken(InMemoryFileSystem):
        def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[str, EntryMeta]:
            raise AssertionError(f"asked for no reason: {grants}")

    router = RouterFileSystem({**mounts, "/broken/": Broken()})
    everything(RouterFileSystem(mounts)).write("/sessions/a", "x")
    assert paths(router.create_handle([grant("/sessions/")]).list()) == ["/sessions/a"]
    assert paths(everything(router).list("/sessions/")) == ["/sessions/a"]


def test_routers_can_be_nested() -> None:
    inner = RouterFileSystem({"/a/b/": InMemoryFileSystem(), "/a/c/": InMemoryFileSystem()})
    handle = everything(RouterFileSystem({"/a/b/": inner, "/a/c/": inner, "/": InMemoryFileSystem()}))
    for path in ("/a/b/x", "/a/c/x", "/x"):
        handle.write(path, path)
    assert paths(handle.list()) == ["/a/b/x", "/a/c/x", "/x"]
