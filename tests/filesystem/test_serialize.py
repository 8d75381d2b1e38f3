"""The state of a file system as bytes, and back (G5)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_filesystem import (
    BuiltinFileSystem,
    DiskFileSystem,
    FileSystemBase,
    FileSystemError,
    InMemoryFileSystem,
    RouterFileSystem,
    StateModule,
)
from tests.filesystem.support import OnlyTheFourHooks, everything, paths

MAKERS: dict[str, Callable[[Path], FileSystemBase]] = {
    "memory": lambda _: InMemoryFileSystem(),
    "disk": DiskFileSystem,
    "router": lambda root: RouterFileSystem(
        {"/": InMemoryFileSystem(), "/workspace/": DiskFileSystem(root, prefix="/workspace/")}
    ),
    "four hooks": lambda _: OnlyTheFourHooks(),
}
ENTRIES = {"/workspace/a": b"\x00\xff", "/workspace/b/c": "中文\r\n".encode(), "/workspace/b/d ": b""}


def contents(filesystem: FileSystemBase) -> dict[str, bytes]:
    """Everything that a file system holds."""
    handle = everything(filesystem)
    return {path: handle.read_binary(path) for path in paths(handle.list())}


def filled(filesystem: FileSystemBase) -> FileSystemBase:
    """A file system with the entries of these tests."""
    for path, data in ENTRIES.items():
        everything(filesystem).write(path, data)
    return filesystem


@pytest.mark.parametrize("source", MAKERS)
@pytest.mark.parametrize("target", MAKERS)
def test_any_state_can_be_restored_anywhere(tmp_path: Path, source: str, target: str) -> None:
    """Contents are kept to the byte; what was there before is gone, also where a file was a directory."""
    data = filled(MAKERS[source](tmp_path / "source")).serialize()
    other = MAKERS[target](tmp_path / "target")
    for path in ("/workspace/a/was/a/directory", "/workspace/b", "/workspace/other"):
        everything(other).write(path, "old")
    other.restore(data)
    assert contents(other) == ENTRIES
    assert other.serialize() != b""


def test_memory_keeps_the_times() -> None:
    memory = filled(InMemoryFileSystem())
    other = InMemoryFileSystem()
    other.restore(memory.serialize())
    known = [(meta["path"], meta["size"], meta["updated_at"]) for meta in everything(memory).list()]
    assert [(meta["path"], meta["size"], meta["updated_at"]) for meta in everything(other).list()] == known
    assert other.serialize() == memory.serialize()
    other.check_integrity()


def test_a_state_is_plain_data_and_does_not_change_afterwards() -> None:
    memory = filled(InMemoryFileSystem())
    state = memory.state_dict()
    before = json.dumps(state)
    everything(memory).write("/later", "x")
    assert json.dumps(state) == before
    memory.load_state_dict(state)
    assert contents(memory) == ENTRIES
    assert isinstance(memory, StateModule)


@given(st.dictionaries(st.text(alphabet="ab .é", min_size=1, max_size=4).map(lambda name: f"/{name}x"), st.binary()))
def test_any_contents_survive(entries: dict[str, bytes]) -> None:
    memory, other = InMemoryFileSystem(), InMemoryFileSystem()
    for path, data in entries.items():
        everything(memory).write(path, data)
    other.restore(memory.serialize())
    assert contents(other) == entries


def test_memory_keeps_the_directories_that_were_made() -> None:
    """With their times; a state from before there were any has none, and other kinds of file systems ignore them."""
    memory, other = filled(InMemoryFileSystem()), InMemoryFileSystem()
    everything(memory).make_directory("/empty")
    everything(memory).make_directory("/empty/deep")
    other.restore(memory.serialize())
    assert other.serialize() == memory.serialize()
    assert everything(other).scan("/") == everything(memory).scan("/")
    assert everything(other).scan("/empty/deep") == []
    four = OnlyTheFourHooks()
    four.restore(memory.serialize())
    assert contents(four) == ENTRIES
    old = memory.state_dict()
    del old["directories"]
    other.load_state_dict(old)
    assert contents(other) == ENTRIES
    assert paths(everything(other).scan("/")) == ["/workspace"]
    other.check_integrity()


@pytest.mark.parametrize(
    "directories",
    [None, 7, [], ["/d"], {"/d": None}, {"/d": "soon"}, {"relative": 1.0}, {"/d/": 1.0}, {"/a": 1.0}, {"/a/b": 1.0}],
    ids=str,
)
def test_directories_that_cannot_be_are_refused(directories: object) -> None:
    memory = filled(InMemoryFileSystem())
    with pytest.raises(FileSystemError):
        memory.load_state_dict(_entry("/a") | {"directories": directories})
    assert contents(memory) == ENTRIES


def _entry(path: object, **changes: object) -> dict[str, object]:
    return {"version": 1, "entries": {path: {"data": "eA==", "updated_at": 1.0} | changes}}


@pytest.mark.parametrize(
    "state",
    [
        {}, {"version": 1}, {"version": 2, "entries": {}}, {"version": 1, "entries": []}, [], None, 7,
        _entry("/a/../b"), _entry("relative"), _entry("/a", data="!!"), _entry("/a", data=None),
        _entry("/a", data="中"),
        _entry("/a", updated_at="soon"), _entry("/a", updated_at=None), {"version": 1, "entries": {"/a": "x"}},
        {"version": 1, "entries": {"/a": {}}},
        {"version": 1, "entries": {path: {"data": "", "updated_at": 1} for path in ("/a/b", "/a", "/c")}},
    ],
    ids=lambda state: str(state)[:40],
)  # fmt: skip
@pytest.mark.parametrize("maker", ["memory", "disk"])
def test_an_illegal_state_is_refused_and_changes_nothing(tmp_path: Path, maker: str, state: object) -> None:
    filesystem = filled(MAKERS[maker](tmp_path))
    with pytest.raises(FileSystemError):
        filesystem.restore(json.dumps(state).encode())
    assert contents(filesystem) == ENTRIES


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"\x80\x04N."])
def test_bytes_that_are_no_state(data: bytes) -> None:
    with pytest.raises(FileSystemError, match="not a serialized state"):
        InMemoryFileSystem().restore(data)


def test_a_state_with_paths_outside_of_the_prefixes_is_refused() -> None:
    builtin = BuiltinFileSystem()
    with pytest.raises(FileSystemError, match="none of the prefixes"):
        builtin.load_state_dict(_entry("/elsewhere/a"))
    builtin.load_state_dict(_entry("/internal/a"))
    assert contents(builtin) == {"/internal/a": b"x"}
