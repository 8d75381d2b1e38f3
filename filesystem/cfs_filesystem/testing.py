"""Conformance tests for logical file systems, to be inherited (G8). Needs pytest.

    class TestMine(FileSystemConformance):
        @pytest.fixture
        def filesystem(self) -> MyFileSystem:
            return MyFileSystem()

A view that is not a `FileSystemBase` (such as an HTTP client) needs only a method `create_handle` whose result behaves
like an `FsHandle`.
"""

import errno
from collections.abc import Callable, Iterable, Iterator

import pytest

from cfs_filesystem._errors import (
    AccessDeniedError,
    ConflictError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    VersionError,
)
from cfs_filesystem._kit import FullHandle, Handle, HandleMaker, Kit, invoke
from cfs_filesystem._tree_tests import TreeTests
from cfs_filesystem._types import OPERATIONS, READ_OPERATIONS, Grant, Operation, Path

# Streams (G8)

# ruff: noqa: S101  a test asserts


_BROKEN: list[Exception] = [
    ValueError("the source"),
    ConnectionResetError(errno.ECONNRESET, "the source"),
    FileNotFoundError(errno.ENOENT, "the source"),
    NotFoundError("the source"),
]


def failing(error: Exception) -> Iterator[bytes]:
    """Supply something, and then fail."""
    yield b"half"
    yield b"way"
    raise error


class StreamTests(Kit):
    """`open` and `write_from`."""

    def test_chunks_are_stored_as_one_content(self, handle: Handle, full: FullHandle) -> None:
        """However it is cut, empty pieces and pieces of a character included; the answer is that of `file`."""
        text = "naïve 中文\nend"
        handle.write(self.at("whole"), text)
        data = text.encode()
        sources: list[Iterable[bytes]] = [[data], [b"", data, b""], (data[at : at + 1] for at in range(len(data)))]
        for number, source in enumerate(sources):
            written = full.write_from(self.at(f"pieces-{number}"), source)
            assert written == full.file(self.at(f"pieces-{number}"))
            assert full.read_binary(self.at(f"pieces-{number}")) == full.read_binary(self.at("whole"))

    def test_streaming_over_an_entry(self, full: FullHandle) -> None:
        """It counts as a write does, and with `overwrite=False` the source is not even asked."""
        full.write(self.at("a"), "first")
        full.write_from(self.at("a"), [b"sec", b"ond"])
        assert full.read_file(self.at("a")) == self.stored("first", "second")
        with pytest.raises(ConflictError):
            full.write_from(self.at("a"), failing(AssertionError("asked")), overwrite=False)
        full.write_from(self.at("b"), [b"new"], overwrite=False)
        assert full.read_file(self.at("b")) == self.stored("new")

    def test_one_version_is_replaced_or_deleted(self, full: FullHandle) -> None:
        """Only where it is the present one, and an entry that is gone has none."""
        first, second = (full.write(self.at("a"), text).get("version") for text in ("first", "second"))
        if not isinstance(first, str) or not isinstance(second, str):
            pytest.skip("a file system without versions")
        before = full.read_binary(self.at("a"))
        with pytest.raises(VersionError):
            full.write_from(self.at("a"), [b"stale"], version=first)
        with pytest.raises(VersionError):
            full.delete(self.at("a"), version=first)
        with pytest.raises(VersionError):
            full.write_from(self.at("b"), [b"stale"], version=first)
        assert full.read_binary(self.at("a")) == before
        third = full.write_from(self.at("a"), [b"third"], version=second)["version"]  # type: ignore[typeddict-item]
        assert full.read_file(self.at("a")) == self.stored("first", "second", "third")
        full.delete(self.at("a"), version=third)
        assert full.list() == []

    @pytest.mark.parametrize("error", _BROKEN, ids=lambda error: type(error).__name__)
    def test_a_source_that_fails_changes_nothing(self, full: FullHandle, error: Exception) -> None:
        """Neither an entry nor a new path, nor a directory; what it raised is what one gets."""
        full.write(self.at("a"), "before")
        before, content = full.list(), full.read_binary(self.at("a"))
        for name in ("a", "new", "d/e/new") if self.nested else ("a", "new"):
            with pytest.raises(type(error), match="the source") as caught:
                full.write_from(self.at(name), failing(error))
            assert caught.value is error
        assert full.list() == before
        assert full.read_binary(self.at("a")) == content
        assert self.names(full.scan(self.here)) == ["a"]

    @pytest.mark.parametrize("source", ["text", b"bytes", b"", None, 7, ["text"], [b"x", None], [b"x", 1]], ids=repr)
    def test_a_source_is_chunks_of_bytes(self, full: FullHandle, source: Iterable[bytes]) -> None:
        """Anything else is refused, and nothing is stored."""
        with pytest.raises(InvalidArgumentError):
            full.write_from(self.at("a"), source)
        assert full.list() == []

    def test_a_content_is_read_from_any_place(self, full: FullHandle) -> None:
        """What is opened is a stream of bytes that can be told where to go on."""
        full.write(self.at("a"), "0123456789")
        whole = full.read_binary(self.at("a"))
        with full.open(self.at("a")) as stream:
            assert stream.read(3) == whole[:3]
            assert stream.seek(5) == stream.tell() == 5
            assert stream.read(2) == whole[5:7]
            assert stream.seek(-2, 2) == len(whole) - 2
            assert stream.read() == whole[-2:]
            assert stream.read() == b""
        with pytest.raises(NotFoundError):
            full.open(self.at("b"))

    def test_what_is_open_stays_as_it_was(self, full: FullHandle) -> None:
        """Writing and deleting make no difference to who has begun to read."""
        full.write(self.at("a"), "before")
        content = full.read_binary(self.at("a"))
        with full.open(self.at("a")) as first, full.open(self.at("a")) as second:
            full.write(self.at("a"), "after")
            assert first.read() == content
            full.delete(self.at("a"))
            assert second.read() == content


# Access rights of directories (G8)

# ruff: noqa: S101  a test asserts


_CALLS: dict[str, tuple[set[Operation], Callable[[FullHandle, Path], object]]] = {
    "open": ({"read_binary"}, lambda handle, path: handle.open(path).close()),
    "write_from": ({"write"}, lambda handle, path: handle.write_from(path, [b"x"])),
    "scan": ({"list"}, lambda handle, path: handle.scan(path)),
    "make_directory": ({"write"}, lambda handle, path: handle.make_directory(path)),
    "remove_directory": ({"delete"}, lambda handle, path: handle.remove_directory(path)),
    "move": ({"read_binary", "delete", "write"}, lambda handle, path: handle.move(path, path + "-")),
    "remove_tree": ({"delete"}, lambda handle, path: handle.remove_tree(path)),
    "copy": ({"read_binary", "write"}, lambda handle, path: handle.copy(path, path + "-")),
    "copy to": ({"read_binary", "write"}, lambda handle, path: handle.copy(path + "-", path)),
    "move to": ({"read_binary", "delete", "write"}, lambda handle, path: handle.move(path + "-", path)),
}
_BAD = ["", "a", "../a", "./a", "/a", "a*", "a\x00", "a/"]
"""What is no path, once it is below the prefix (the first two by themselves)."""


class DirectoryRightsTests(Kit):
    """The order of checks, and what grants show, for all but the operations that grants have names for."""

    @pytest.mark.parametrize("call", _CALLS)
    def test_strings_that_are_no_path_of_a_directory(self, filesystem: HandleMaker, call: str) -> None:
        """They are refused before rights are looked at."""
        for maker in (self.grant(filesystem), filesystem.create_handle([])):
            handle = self.with_all_operations(maker)
            for bad in (*_BAD[:2], *(self.at(bad) for bad in _BAD[2:])):
                with pytest.raises(InvalidPathError):
                    _CALLS[call][1](handle, bad)
                if call == "scan":
                    with pytest.raises(InvalidPathError):
                        handle.is_directory(bad)

    @pytest.mark.parametrize("call", _CALLS)
    def test_denials_tell_nothing(self, filesystem: HandleMaker, handle: Handle, call: str) -> None:
        """Without one of the rights, or beside the prefix, access is denied, whatever is there."""
        needed, act = _CALLS[call]
        full = self.with_all_operations(handle)
        for name in ("a", "ab"):
            full.write(self.at(name), "x")
        before = full.list()
        lacking = [self.full_grant(filesystem, *(OPERATIONS - {operation})) for operation in sorted(needed)]
        beside = self.full_grant(filesystem, prefix=self.at("a"))
        for denied, name in ((one, name) for one in (*lacking, beside) for name in ("ab", "none", "none/deep")):
            with pytest.raises(AccessDeniedError):
                act(denied, self.at(name))
        assert full.list() == before

    def test_a_move_needs_rights_at_both_paths(self, filesystem: HandleMaker, full: FullHandle) -> None:
        """To read and delete here, to write there; the other way round is of no use."""
        full.write(self.at("a"), "x")
        source_grant = Grant(prefix=self.at("a"), ops={"read_binary", "delete"})
        target_grant = Grant(prefix=self.at("b"), ops={"write"})
        for grants in (
            [source_grant],
            [target_grant],
            [Grant(prefix=self.at("b"), ops=OPERATIONS), Grant(prefix=self.at("a"), ops={"write"})],
        ):
            with pytest.raises(AccessDeniedError):
                self.with_all_operations(filesystem.create_handle(grants)).move(self.at("a"), self.at("b"))
        self.with_all_operations(filesystem.create_handle([source_grant, target_grant])).move(
            self.at("a"), self.at("b")
        )
        assert self.names(full.list()) == ["b"]

    def test_a_scan_shows_what_leads_to_what_may_be_listed(self, filesystem: HandleMaker, full: FullHandle) -> None:
        """Below, at, beside and deeper than the grants: the way there and nothing else, and no way to nowhere."""
        if not self.nested:
            pytest.skip("one level only")
        for name in ("a", "ab", "d/x", "d/e/y", "d/e/f/z", "g/x", "h/x"):
            full.write(self.at(name), "x")
        grants = [
            Grant(prefix=self.at(name), ops={"list"})
            for name in ("a", "d/e/f", "g/", "h/none", "none", "none/deep", "a/below/an/entry")
        ]
        some = self.with_all_operations(filesystem.create_handle(grants))
        assert self.names(some.scan(self.here)) == ["a", "d/", "g/"]
        assert self.names(some.scan(self.at("d"))) == ["d/e/"]
        assert self.names(some.scan(self.at("d/e"))) == ["d/e/f/"]
        assert self.names(some.scan(self.at("d/e/f"))) == ["d/e/f/z"]
        assert self.names(some.scan(self.at("g"))) == ["g/x"]
        names = ["a", "d", "d/e", "d/e/f", "g", "h", "none", "ab"]
        assert [name for name in names if some.is_directory(self.at(name))] == ["d", "d/e", "d/e/f", "g"]
        for name in ("h", "none", "a"):
            with pytest.raises(NotFoundError):
                some.scan(self.at(name))
        for name in ("ab", "d/x", "elsewhere", "hh"):
            with pytest.raises(AccessDeniedError):
                some.scan(self.at(name))

    def test_a_directory_on_the_way_says_nothing_of_what_is_beside_it(
        self, filesystem: HandleMaker, full: FullHandle
    ) -> None:
        """Not even when something there has changed: its time is that of what it leads to."""
        if not self.nested:
            pytest.skip("one level only")
        full.write(self.at("d/mine"), "x")
        some = self.full_grant(filesystem, "list", prefix=self.at("d/mine"))
        before = some.scan(self.here)
        assert self.names(before) == ["d/"]
        full.write(self.at("d/other"), "x")
        full.delete(self.at("d/other"))
        assert some.scan(self.here) == before

    def test_who_may_know_of_a_directory(self, filesystem: HandleMaker, full: FullHandle) -> None:
        """Who may list or look at it; no other right suffices."""
        full.write(self.at("d/x" if self.nested else "x"), "x")
        directory = self.at("d") if self.nested else self.here
        for operation in sorted(OPERATIONS):
            is_directory = self.full_grant(filesystem, operation, prefix=directory).is_directory(directory)
            assert is_directory is (operation in ("list", "file"))
        assert not self.with_all_operations(filesystem.create_handle([])).is_directory(directory)


# Moves (G8)

# ruff: noqa: S101  a test asserts


class MoveTests(Kit):
    """`move`."""

    def test_moving_an_entry(self, full: FullHandle) -> None:
        """Its content is at the new path, and the old one is free."""
        full.write(self.at("a"), "content")
        content = full.read_binary(self.at("a"))
        full.move(self.at("a"), self.at("b"))
        assert self.names(full.list()) == ["b"]
        assert full.read_binary(self.at("b")) == content
        full.write(self.at("a"), "again", overwrite=False)
        if self.nested:
            full.write(self.at("d/x"), "x")
            full.move(self.at("b"), self.at("d/y"))
            assert self.names(full.list()) == ["a", "d/x", "d/y"]
            assert full.read_binary(self.at("d/y")) == content

    def test_moving_over_an_entry(self, full: FullHandle) -> None:
        """Only when that is asked for; then it takes the place of the other."""
        full.write(self.at("a"), "content")
        full.write(self.at("b"), "other")
        content, other = full.read_binary(self.at("a")), full.read_binary(self.at("b"))
        with pytest.raises(ConflictError):
            full.move(self.at("a"), self.at("b"))
        assert (full.read_binary(self.at("a")), full.read_binary(self.at("b"))) == (content, other)
        if self.moves_over:
            full.move(self.at("a"), self.at("b"), overwrite=True)
            assert self.names(full.list()) == ["b"]
            assert full.read_binary(self.at("b")) == content
        else:
            with pytest.raises(ConflictError):
                full.move(self.at("a"), self.at("b"), overwrite=True)
            assert self.names(full.list()) == ["a", "b"]

    def test_moving_nothing(self, full: FullHandle) -> None:
        """It is not found, and nothing comes to be."""
        full.write(self.at("b"), "x")
        for overwrite in (False, True):
            for target in ("b", "c", "a"):
                with pytest.raises(NotFoundError):
                    full.move(self.at("a"), self.at(target), overwrite=overwrite)
        assert self.names(full.list()) == ["b"]

    def test_moving_to_where_it_is_or_where_nothing_can_be(self, full: FullHandle) -> None:
        """To itself, below itself, below an entry, and to a directory that is not there."""
        full.write(self.at("a"), "x")
        full.write(self.at("b"), "x")
        before = full.list()
        for overwrite in (False, True):
            for target in ("a", "a/b", "b/c", "none/a"):
                with pytest.raises(ConflictError):
                    full.move(self.at("a"), self.at(target), overwrite=overwrite)
        assert full.list() == before

    def test_an_entry_does_not_take_the_place_of_a_directory(self, full: FullHandle) -> None:
        """Not even of one that is empty: that would be for a write."""
        if not self.nested:
            pytest.skip("one level only")
        full.write(self.at("a"), "x")
        full.write(self.at("d/x"), "x")
        targets = ["d"]
        if self.empty_directories:
            full.make_directory(self.at("e"))
            targets.append("e")
        before = full.list(), full.scan(self.here)
        for overwrite in (False, True):
            for target in targets:
                with pytest.raises(ConflictError):
                    full.move(self.at("a"), self.at(target), overwrite=overwrite)
        assert (full.list(), full.scan(self.here)) == before

    def test_moving_a_directory(self, full: FullHandle) -> None:
        """Everything in it has the new path, nothing has the old, and neither has what only shares letters."""
        self._require_directories(full)
        if self.empty_directories:
            full.make_directory(self.at("d/empty"))
        contents = {path.removeprefix(self.at("d")): full.read_binary(path) for path in self._below(full, "d")}
        full.move(self.at("d"), self.at("moved"))
        assert {path.removeprefix(self.at("moved")): full.read_binary(path) for path in self._below(full, "moved")} == (
            contents
        )
        assert not full.is_directory(self.at("d"))
        assert self._below(full, "d") == []
        assert self._below(full, "dd") == [self.at("dd/x")]
        if self.empty_directories:
            assert full.scan(self.at("moved/empty")) == []
        full.write(self.at("d"), "the path is free")

    def test_a_directory_takes_the_place_of_nothing(self, full: FullHandle) -> None:
        """Neither of an entry nor of a directory, be it empty; and it does not go into itself."""
        self._require_directories(full)
        full.write(self.at("a"), "x")
        targets = ["a", "dd", "d", "d/e", "d/new", "d/e/f/new", "none/d", "a/d"]
        if self.empty_directories:
            full.make_directory(self.at("empty"))
            targets.append("empty")
        before = full.list(), full.scan(self.here)
        for overwrite in (False, True):
            for target in targets:
                with pytest.raises(ConflictError):
                    full.move(self.at("d"), self.at(target), overwrite=overwrite)
        assert (full.list(), full.scan(self.here)) == before

    def test_where_directories_stay_where_they_are(self, full: FullHandle) -> None:
        """That is told, and nothing changes."""
        if self.moves_directories or not self.nested:
            pytest.skip("a file system that moves directories, or has none")
        full.write(self.at("d/x"), "x")
        with pytest.raises(ConflictError):
            full.move(self.at("d"), self.at("moved"))
        assert self.names(full.list()) == ["d/x"]

    def _below(self, full: FullHandle, name: str) -> list[str]:
        return [meta["path"] for meta in full.list(self.at(name))]

    def _require_directories(self, full: FullHandle) -> None:
        if not self.nested or not self.moves_directories:
            pytest.skip("a file system that moves no directories")
        for name in ("d/x", "d/e/y", "d/e/f/z", "dd/x"):
            full.write(self.at(name), name)


# Directories (G8)

# ruff: noqa: S101  a test asserts


class DirectoryTests(Kit):
    """`scan`, `is_directory`, `make_directory` and `remove_directory`."""

    def test_a_scan_is_one_level(self, full: FullHandle) -> None:
        """Entries as `file` knows them, and each directory once, sorted by path; nothing of what is deeper."""
        names = ["b", "a b", "ab", "d/x", "d/e/y", "d-/x"] if self.nested else ["b", "a b", "ab"]
        for name in names:
            full.write(self.at(name), name)
        entries = full.scan(self.here)
        assert self.names(entries) == (["a b", "ab", "b", "d/", "d-/"] if self.nested else ["a b", "ab", "b"])
        for meta in entries:
            if meta.get("directory"):
                assert meta["size"] == 0
                assert (meta["updated_at"].timestamp() > 1e9) is self.dated_directories
            else:
                assert meta == full.file(meta["path"])
        if self.nested:
            assert self.names(full.scan(self.at("d"))) == ["d/e/", "d/x"]
            assert self.names(full.scan(self.at("d/e"))) == ["d/e/y"]

    def test_only_a_directory_is_scanned(self, full: FullHandle) -> None:
        """Entries and what is not there are none, and `is_directory` says the same."""
        full.write(self.at("a"), "x")
        for name in ("a", "b", "a/b"):
            assert not full.is_directory(self.at(name))
            with pytest.raises(NotFoundError):
                full.scan(self.at(name))
        assert full.is_directory(self.here)
        assert full.is_directory("/")
        if self.nested:
            full.write(self.at("d/e/y"), "x")
            directories = [name for name in ("d", "d/e", "d/e/y", "e", "dd") if full.is_directory(self.at(name))]
            assert directories == ["d", "d/e"]

    def test_each_step_of_the_way_leads_to_the_next(self, full: FullHandle) -> None:
        """From `/` down, everything on the way to an entry is in the scan of what is above it."""
        path = self.at("d/e" if self.nested else "a")
        full.write(path, "x")
        for end in [at for at, character in enumerate(path) if character == "/"]:
            above, below = path[:end] or "/", path[: (path + "/").index("/", end + 1)]
            assert full.is_directory(above)
            directories = {meta["path"]: meta.get("directory", False) for meta in full.scan(above)}
            assert directories[below] is (below != path)

    def test_what_a_scan_returns_is_the_callers(self, full: FullHandle) -> None:
        """Changing it changes nothing in the file system."""
        full.write(self.at("d/e" if self.nested else "a"), "x")
        before = full.scan(self.here)
        for meta in full.scan(self.here):
            meta["size"] = -1
        assert full.scan(self.here) == before

    def test_making_a_directory(self, full: FullHandle) -> None:
        """It is there with nothing in it, is no entry, and stays when what came into it has gone again."""
        self._require_empty_ones(full)
        full.make_directory(self.at("d"))
        full.make_directory(self.at("d/e"))
        assert full.is_directory(self.at("d/e"))
        assert full.scan(self.at("d/e")) == []
        assert self.names(full.scan(self.at("d"))) == ["d/e/"]
        assert self.names(full.scan(self.here)) == ["d/", "seed"]
        assert (full.scan(self.here)[0]["updated_at"].timestamp() > 1e9) is self.dated_directories
        assert self.names(full.list()) == ["seed"]
        with pytest.raises(NotFoundError):
            full.file(self.at("d"))
        full.write(self.at("d/e/x"), "x")
        full.delete(self.at("d/e/x"))
        assert full.scan(self.at("d/e")) == []

    def test_making_what_cannot_be(self, full: FullHandle) -> None:
        """What exists is not made again, and nothing is made in what is no directory."""
        self._require_empty_ones(full)
        full.write(self.at("a"), "x")
        full.write(self.at("d/x"), "x")
        before = full.list(), full.scan(self.here)
        for name in ("a", "d", "d/x", "a/b", "none/e", "d/none/e"):
            with pytest.raises(ConflictError):
                full.make_directory(self.at(name))
        assert (full.list(), full.scan(self.here)) == before

    def test_removing_a_directory(self, full: FullHandle) -> None:
        """Only an empty one; what has gone can come again, as a directory or as an entry."""
        self._require_empty_ones(full)
        full.make_directory(self.at("d"))
        full.make_directory(self.at("d/e"))
        with pytest.raises(ConflictError):
            full.remove_directory(self.at("d"))
        full.remove_directory(self.at("d/e"))
        assert self.names(full.scan(self.here)) == ["d/", "seed"]
        full.remove_directory(self.at("d"))
        assert self.names(full.scan(self.here)) == ["seed"]
        assert not full.is_directory(self.at("d"))
        full.make_directory(self.at("d"))
        full.remove_directory(self.at("d"))
        full.write(self.at("d"), "x")

    def test_removing_what_is_no_empty_directory(self, full: FullHandle) -> None:
        """An entry and nothing at all are no directory; one with an entry in it stays."""
        full.write(self.at("a"), "x")
        before = full.list()
        for name in ("a", "none", "a/b"):
            with pytest.raises(NotFoundError):
                full.remove_directory(self.at(name))
        if self.nested:
            full.write(self.at("d/x"), "x")
            before = full.list()
            with pytest.raises(ConflictError):
                full.remove_directory(self.at("d"))
        assert full.list() == before

    def test_an_empty_directory_gives_way_to_an_entry(self, full: FullHandle) -> None:
        """With the empty ones in it; one with an entry below it does not."""
        self._require_empty_ones(full)
        for name in ("d", "d/e", "d/f"):
            full.make_directory(self.at(name))
        full.write(self.at("d/f/x"), "x")
        with pytest.raises(ConflictError):
            full.write(self.at("d"), "x")
        assert full.is_directory(self.at("d/e"))
        full.delete(self.at("d/f/x"))
        full.write(self.at("d"), "now an entry")
        assert self.names(full.scan(self.here)) == ["d", "seed"]
        assert not full.is_directory(self.at("d/e"))

    def test_where_no_directory_is_empty_none_is_made(self, full: FullHandle) -> None:
        """That is told, and nothing changes."""
        if self.empty_directories:
            pytest.skip("a file system with empty directories")
        full.write(self.at("a"), "x")
        before = full.list()
        with pytest.raises(ConflictError):
            full.make_directory(self.at("d"))
        assert full.list() == before
        assert not full.is_directory(self.at("d"))

    def _require_empty_ones(self, full: FullHandle) -> None:
        """Let the place of the tests be there; skip where no directory can be empty."""
        if not self.empty_directories:
            pytest.skip("a file system without empty directories")
        full.write(self.at("seed"), "x")


# ruff: noqa: S101  a test asserts


__all__ = ["FileSystemConformance", "FullHandle", "Handle", "HandleMaker", "invoke"]


class FileSystemConformance(StreamTests, DirectoryTests, MoveTests, TreeTests, DirectoryRightsTests):
    """A subclass supplies the fixture `filesystem`, empty at `prefix`, and says where it is special."""

    def test_what_is_written_is_read(self, handle: Handle) -> None:
        """All three ways of reading see what was written, and so does a handle made later."""
        handle.write(self.at("a"), "one\ntwo\n")
        text = self.stored("one\ntwo\n")
        assert handle.read_binary(self.at("a")) == text.encode()
        assert handle.read_file(self.at("a")) == text
        assert handle.read_re(self.at("a"), "t[a-z]o") == ["two"]

    def test_bytes_are_kept_as_they_are(self, handle: Handle) -> None:
        """Nothing is decoded, translated or trimmed on the way."""
        data = bytes(range(256)) + b"\r\n\n" if self.binary else "é\r\n中\n".encode()
        handle.write(self.at("a"), data)
        if self.binary:
            assert handle.read_binary(self.at("a")) == data
        else:
            assert data.rstrip() in handle.read_binary(self.at("a"))

    def test_text_is_stored_as_utf8(self, handle: Handle) -> None:
        """A string and its UTF-8 bytes are the same content."""
        handle.write(self.at("a"), "naïve 中文 🙂")
        handle.write(self.at("b"), "naïve 中文 🙂".encode())
        assert handle.read_binary(self.at("a")) == handle.read_binary(self.at("b"))

    def test_writing_again(self, handle: Handle) -> None:
        """A second write counts, and with `overwrite=False` it is refused and changes nothing."""
        handle.write(self.at("a"), "first")
        handle.write(self.at("a"), "second")
        before = handle.read_file(self.at("a"))
        assert before == self.stored("first", "second")
        with pytest.raises(ConflictError):
            handle.write(self.at("a"), "third", overwrite=False)
        assert handle.read_file(self.at("a")) == before
        handle.write(self.at("b"), "new", overwrite=False)
        assert handle.read_file(self.at("b")) == self.stored("new")

    def test_deleting(self, handle: Handle) -> None:
        """A deleted entry is gone for every operation, and its path is free again."""
        handle.write(self.at("a"), "x")
        handle.delete(self.at("a"))
        for operation in OPERATIONS - {"list", "write"}:
            with pytest.raises(NotFoundError):
                invoke(handle, operation, self.at("a"))
        assert handle.list() == []
        handle.write(self.at("a"), "again", overwrite=False)
        assert handle.read_file(self.at("a")) == self.stored("again")

    def test_file_and_list_agree_with_the_content(self, handle: Handle) -> None:
        """`write`, `file` and `list` say the same of an entry: its path and its true size."""
        written = handle.write(self.at("a"), "中文")
        entry = handle.file(self.at("a"))
        assert entry == written
        assert entry in handle.list()
        assert entry["path"] == self.at("a")
        assert entry["size"] == len(handle.read_binary(self.at("a")))
        assert entry["updated_at"].timestamp() > 1e9

    def test_a_version_changes_with_every_write(self, handle: Handle) -> None:
        """Where there are versions, each write makes a new one, also of the same content, and reading makes none."""
        contents = ["same"] * 3 if self.versions_of_writes else ["one", "two", "three"]
        versions = [handle.write(self.at("a"), content).get("version") for content in contents]
        if versions == [None, None, None]:
            pytest.skip("a file system without versions")
        handle.read_binary(self.at("a"))
        assert handle.file(self.at("a")).get("version") == versions[-1]
        assert len({*versions, None}) == 4

    def test_what_is_returned_is_the_callers(self, handle: Handle) -> None:
        """Changing what an operation returned changes nothing in the file system."""
        for meta in (handle.write(self.at("a"), "x"), handle.file(self.at("a")), handle.list()[0]):
            meta["size"] = -1
        assert handle.file(self.at("a"))["size"] > 0

    def test_listing_is_sorted_by_path(self, handle: Handle) -> None:
        """The order is that of the code points, whatever the order of writing."""
        names = ["b", "a", "B", "é", "a b", "中", "10", "9"]
        for name in names:
            handle.write(self.at(name), "x")
        assert [meta["path"] for meta in handle.list()] == sorted(map(self.at, names))

    def test_listing_a_prefix(self, handle: Handle) -> None:
        """A prefix is the entry itself and what is below it, never a sibling that shares letters."""
        for name in ("a", "ab", "a b"):
            handle.write(self.at(name), "x")
        assert [meta["path"] for meta in handle.list(self.at("a"))] == [self.at("a")]
        assert handle.list(self.at("a/")) == []
        assert handle.list(self.at("absent")) == []
        assert len(handle.list(self.prefix)) == 3

    def test_white_space_and_case_are_significant(self, handle: Handle) -> None:
        """Names that look alike are different names, and stay as they are."""
        names = ["a", "A", "a ", "a.", "é", "e\u0301"]
        for name in names:
            handle.write(self.at(name), f"this is {name}")
        for name in names:
            assert handle.read_re(self.at(name), f"(?<=this is ){name}") == [name]
        assert len(handle.list()) == len(names)

    def test_directories_come_and_go_by_themselves(self, handle: Handle) -> None:
        """What is above an entry is no entry; when the last one below it has gone, its path is free."""
        if not self.nested:
            pytest.skip("one level only")
        handle.write(self.at("a/b/c"), "deep")
        assert [meta["path"] for meta in handle.list(self.at("a"))] == [self.at("a/b/c")]
        for operation in OPERATIONS - {"list", "write"}:
            with pytest.raises(NotFoundError):
                invoke(handle, operation, self.at("a/b"))
        handle.delete(self.at("a/b/c"))
        handle.write(self.at("a"), "flat")
        assert handle.read_file(self.at("a")) == self.stored("flat")

    def test_nothing_is_both_entry_and_directory(self, handle: Handle) -> None:
        """A write that would make one of them is a conflict, and changes nothing."""
        if not self.nested:
            pytest.skip("one level only")
        handle.write(self.at("a/b/c"), "deep")
        before = handle.list()
        for name in ("a", "a/b", "a/b/c/d", "a/b/c/d/e"):
            with pytest.raises(ConflictError):
                handle.write(self.at(name), "x")
        assert handle.list() == before

    def test_lines(self, handle: Handle) -> None:
        """Lines come as stored, from the first asked for, as many as asked for or as there are."""
        handle.write(self.at("a"), "0\n1\r\n2\n3")
        lines = self.stored("0\n1\r\n2\n3").splitlines(keepends=True)
        whole = "".join(lines)
        assert handle.read_file(self.at("a"), 0) == whole
        assert handle.read_file(self.at("a"), 1, 1) == lines[1]
        assert handle.read_file(self.at("a"), index=1, line=2) == "".join(lines[1:3])
        assert handle.read_file(self.at("a"), line=1) == lines[0]
        assert handle.read_file(self.at("a"), 2, 1000) == "".join(lines[2:])
        with pytest.raises(NotFoundError):
            handle.read_file(self.at("a"), len(lines))

    def test_overlapping_matches(self, handle: Handle) -> None:
        """A match shares at most `overlap` characters with the one before; without it, or with 0, none."""
        handle.write(self.at("a"), "xyxyxyx zzzz")
        assert handle.read_re(self.at("a"), "xyx") == handle.read_re(self.at("a"), "xyx", 0) == ["xyx", "xyx"]
        assert handle.read_re(self.at("a"), "xyx", 1) == handle.read_re(self.at("a"), "xyx", 10**6) == ["xyx"] * 3
        assert handle.read_re(self.at("a"), "zzz") == ["zzz"]
        assert handle.read_re(self.at("a"), "zzz", 1) == ["zzz"]
        assert handle.read_re(self.at("a"), "zzz", 2) == ["zzz", "zzz"]

    def test_arguments_out_of_range(self, handle: Handle) -> None:
        """Numbers that mean nothing, patterns that are none, and data that is none are refused."""
        handle.write(self.at("a"), "x")
        for index, line in ((-1, None), (None, 0), (0, -1)):
            with pytest.raises(InvalidArgumentError):
                handle.read_file(self.at("a"), index, line)
        for pattern, overlap in (("x", -1), ("(", None), ("((x{900}){900}){900}", None)):
            with pytest.raises(InvalidArgumentError):
                handle.read_re(self.at("a"), pattern, overlap)
        for data in (None, 1, ["x"], "\ud800"):
            with pytest.raises(InvalidArgumentError):
                handle.write(self.at("a"), data)  # type: ignore[arg-type]

    def test_text_operations_refuse_what_is_not_text(self, handle: Handle) -> None:
        """Bytes that are not UTF-8 can be read as bytes only."""
        if not self.binary:
            with pytest.raises(InvalidArgumentError):
                handle.write(self.at("a"), b"\xff\xfe")
            return
        handle.write(self.at("a"), b"\xff\xfe")
        with pytest.raises(InvalidArgumentError):
            handle.read_file(self.at("a"))
        with pytest.raises(InvalidArgumentError):
            handle.read_re(self.at("a"), "x")

    @pytest.mark.parametrize("operation", sorted(OPERATIONS))
    def test_strings_that_are_no_path(self, filesystem: HandleMaker, operation: Operation) -> None:
        """They are refused by each operation, before rights are looked at."""
        for handle in (self.grant(filesystem), filesystem.create_handle([])):
            for bad in ("", "a", self.at("../a"), self.at("./a"), self.at("/a"), self.at("a*"), self.at("a\x00")):
                with pytest.raises(InvalidPathError):
                    invoke(handle, operation, bad)
            if operation != "list":
                with pytest.raises(InvalidPathError):
                    invoke(handle, operation, self.at("a/"))

    @pytest.mark.parametrize("operation", sorted(OPERATIONS))
    def test_denials(self, filesystem: HandleMaker, handle: Handle, operation: Operation) -> None:
        """Without the operation, or beside the prefix, access is denied, whether the entry exists or not."""
        for name in ("a", "ab"):
            handle.write(self.at(name), "x")
        before = handle.list()
        others = self.grant(filesystem, *(OPERATIONS - {operation}))
        beside = self.grant(filesystem, prefix=self.at("a"))
        for denied, name in ((others, "a"), (others, "none"), (beside, "ab"), (beside, "none")):
            with pytest.raises(AccessDeniedError):
                invoke(denied, operation, self.at(name))
        assert handle.list() == before
        invoke(self.grant(filesystem, operation, prefix=self.at("a")), operation, self.at("a"))

    def test_read_stands_for_the_three_reads(self, filesystem: HandleMaker, handle: Handle) -> None:
        """A grant of `read` covers reading content, and nothing else."""
        handle.write(self.at("a"), "x")
        reader = self.grant(filesystem, "read")
        for operation in sorted(READ_OPERATIONS):
            invoke(reader, operation, self.at("a"))
        for operation in sorted(OPERATIONS - READ_OPERATIONS):
            with pytest.raises(AccessDeniedError):
                invoke(reader, operation, self.at("a"))

    def test_listing_shows_what_may_be_listed(self, filesystem: HandleMaker, handle: Handle) -> None:
        """The rest is left out without a word."""
        for name in ("a", "ab", "b", "c"):
            handle.write(self.at(name), "x")
        some = filesystem.create_handle(
            [
                Grant(prefix=self.at("a"), ops={"list"}),
                Grant(prefix=self.at("b"), ops={"file", "read", "write", "delete"}),
                Grant(prefix=self.at("c"), ops={"list", "file"}),
            ]
        )
        assert [meta["path"] for meta in some.list()] == [self.at("a"), self.at("c")]
        assert [meta["path"] for meta in some.list(self.prefix)] == [self.at("a"), self.at("c")]
        with pytest.raises(AccessDeniedError):
            some.list(self.at("b"))
