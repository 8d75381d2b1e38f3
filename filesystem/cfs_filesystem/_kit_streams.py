"""What every file system must do with contents that come and go piece by piece (G8)."""
# ruff: noqa: S101  a test asserts

import errno
from collections.abc import Iterable, Iterator

import pytest

from cfs_filesystem._errors import ConflictError, InvalidArgumentError, NotFoundError
from cfs_filesystem._kit import Kit
from cfs_filesystem._views import FullHandle, Handle

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
