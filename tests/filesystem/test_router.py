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


def test_mounts_are_directories(mounts: dict[str, FileSystemBase]) -> None:
    """Each is shown where it is mounted, by whatever name it is asked for, be there anything in it or not."""
    handle = everything(RouterFileSystem(mounts))
    assert [(meta["path"], meta.get("directory")) for meta in handle.scan("/")] == [
        ("/sessions", True),
        ("/workspaces", True),
    ]
    for directory in ("/workspaces", "/workspaces/"):
        assert paths(handle.scan(directory)) == ["/workspaces/scratch"]
    for directory in ("/sessions", "/sessions/", "/workspaces/scratch", "/workspaces/scratch/"):
        assert handle.scan(directory) == []
        assert handle.is_directory(directory)
    handle.write("/workspaces/scratch/x", "x")
    handle.write("/workspaces/main/x", "x")
    assert paths(handle.scan("/workspaces")) == ["/workspaces/main", "/workspaces/scratch"]
    assert paths(handle.scan("/workspaces/scratch")) == ["/workspaces/scratch/x"]
    for bad in ("/elsewhere", "/workspaces/main/", "/sessionsx", "//"):
        with pytest.raises(InvalidPathError):
            handle.scan(bad)


def test_a_caller_sees_the_mounts_that_lead_to_what_it_may_list(mounts: dict[str, FileSystemBase]) -> None:
    router = RouterFileSystem(mounts)
    everything(router).write("/workspaces/main/x", "x")
    everything(router).write("/workspaces/other/x", "x")
    some = router.create_handle([grant("/workspaces/main/", "list"), grant("/sessions/", "read"), grant("/x", "list")])
    assert paths(some.scan("/")) == ["/workspaces"]
    assert paths(some.scan("/workspaces/")) == ["/workspaces/main"]
    assert some.is_directory("/")
    assert not some.is_directory("/sessions")
    new = router.create_handle([grant("/workspaces/new/", "list")])
    assert new.scan("/") == []
    assert new.scan("/workspaces") == []
    assert new.is_directory("/workspaces")
    whole = router.create_handle([grant("/workspaces", "list")])
    assert paths(whole.scan("/")) == ["/workspaces"]
    assert paths(whole.scan("/workspaces")) == ["/workspaces/main", "/workspaces/other", "/workspaces/scratch"]


def test_mounts_are_neither_made_nor_moved_nor_removed(mounts: dict[str, FileSystemBase]) -> None:
    """Nor what they are in."""
    router = RouterFileSystem({**mounts, "/": InMemoryFileSystem(), "/on/disk/": InMemoryFileSystem()})
    handle = everything(router)
    handle.write("/a", "x")
    handle.write("/on/x", "x")
    for path in ("/sessions", "/workspaces/scratch", "/on", "/on/disk"):
        for action in (handle.make_directory, handle.remove_directory, router._make_directory_impl):
            with pytest.raises(ConflictError):
                action(path)
        with pytest.raises(ConflictError, match="mounted"):
            router._remove_directory_impl(path)
        for target in ("/moved", "/on/moved"):
            with pytest.raises(ConflictError):
                handle.move(path, target)
        for overwrite in (True, False):
            with pytest.raises(ConflictError):
                handle.move("/a", path, overwrite=overwrite)


def test_nothing_is_moved_between_two_mounts(mounts: dict[str, FileSystemBase]) -> None:
    """The caller is told, and can copy."""
    handle = everything(RouterFileSystem(mounts))
    handle.write("/workspaces/main/x", "x")
    handle.write("/sessions/x", "x")
    for path, target in (
        ("/workspaces/main/x", "/workspaces/scratch/x"),
        ("/workspaces/main", "/sessions/main"),
        ("/sessions/x", "/workspaces/x"),
    ):
        with pytest.raises(ConflictError, match="two file systems"):
            handle.move(path, target)
    handle.move("/workspaces/main", "/workspaces/other")
    assert paths(handle.list()) == ["/sessions/x", "/workspaces/other/x"]


def test_directories_of_nested_routers() -> None:
    inner = RouterFileSystem({"/a/b/": InMemoryFileSystem(), "/a/c/": InMemoryFileSystem()})
    root = RouterFileSystem({"/": InMemoryFileSystem(), "/a/b/c/": InMemoryFileSystem()})
    handle = everything(RouterFileSystem({"/a/b/": root, "/a/c/": inner}))
    assert paths(handle.scan("/a")) == ["/a/b", "/a/c"]
    assert paths(handle.scan("/a/b/")) == ["/a/b/c"], "a mount of the inner one"
    handle.make_directory("/a/b/c/d")
    handle.make_directory("/a/c/d")
    assert paths(handle.scan("/a/b/c")) == ["/a/b/c/d"]
    assert paths(handle.scan("/a/c")) == ["/a/c/d"]
    with pytest.raises(ConflictError, match="mounted"):
        handle.remove_directory("/a/b/c")


def test_streams_go_to_their_mount(mounts: dict[str, FileSystemBase]) -> None:
    router = RouterFileSystem(mounts)
    handle = everything(router)
    handle.write_from("/workspaces/main/x", [b"a", b"b"])
    with handle.open("/workspaces/main/x") as stream:
        assert stream.read() == b"ab"
    with pytest.raises(ConflictError, match="mounted"):
        handle.write_from("/workspaces/scratch", [b"x"])
