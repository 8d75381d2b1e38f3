"""What every logical file system must do, as tests to be inherited (G8). Needs pytest.

    class TestMine(FileSystemConformance):
        @pytest.fixture
        def filesystem(self) -> MyFileSystem:
            return MyFileSystem()

A view that is no `FileSystemBase` (a client of one behind HTTP, say) needs only a `create_handle` whose result behaves
like an `FsHandle`.
"""
# ruff: noqa: S101  a test asserts

import pytest

from cfs_filesystem._errors import (
    AccessDeniedError,
    ConflictError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
)
from cfs_filesystem._kit_directories import DirectoryTests
from cfs_filesystem._kit_moves import MoveTests
from cfs_filesystem._kit_rights import DirectoryRightsTests
from cfs_filesystem._kit_streams import StreamTests
from cfs_filesystem._types import OPERATIONS, READ_OPERATIONS, Grant, Operation
from cfs_filesystem._views import FullHandle, Handle, HandleMaker, invoke

__all__ = ["FileSystemConformance", "FullHandle", "Handle", "HandleMaker", "invoke"]


class FileSystemConformance(StreamTests, DirectoryTests, MoveTests, DirectoryRightsTests):
    """A subclass supplies the fixture `filesystem`, empty at `prefix`, and says where it is special."""

    # -- contents -------------------------------------------------------------------------------------------------

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

    # -- what is known without reading ------------------------------------------------------------------------------

    def test_file_and_list_agree_with_the_content(self, handle: Handle) -> None:
        """`write`, `file` and `list` say the same of an entry: its path and its true size."""
        written = handle.write(self.at("a"), "中文")
        known = handle.file(self.at("a"))
        assert known == written
        assert known in handle.list()
        assert known["path"] == self.at("a")
        assert known["size"] == len(handle.read_binary(self.at("a")))
        assert known["updated_at"] > 1e9

    def test_a_version_changes_with_every_write(self, handle: Handle) -> None:
        """Where there are versions, each write makes a new one, also of the same content, and reading makes none."""
        versions = [handle.write(self.at("a"), "same").get("version") for _ in range(3)]
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
        assert handle.list(self.at("nobody")) == []
        assert len(handle.list(self.prefix)) == 3

    def test_white_space_and_case_are_significant(self, handle: Handle) -> None:
        """Names that look alike are different names, and stay as they are."""
        names = ["a", "A", "a ", "a.", "é", "e\u0301"]
        for name in names:
            handle.write(self.at(name), f"this is {name}")
        for name in names:
            assert handle.read_re(self.at(name), f"(?<=this is ){name}") == [name]
        assert len(handle.list()) == len(names)

    # -- directories that are not there -----------------------------------------------------------------------------

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

    # -- reading parts ----------------------------------------------------------------------------------------------

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

    # -- paths and rights -------------------------------------------------------------------------------------------

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
