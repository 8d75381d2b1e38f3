"""What looks like a handle, and what makes it: all that the test kit asks of a view (G8)."""

from collections.abc import Iterable
from typing import BinaryIO, Protocol

from cfs_filesystem._types import EntryMeta, Grant, Operation, Path

_Metas = list[EntryMeta]
_Texts = list[str]


class Handle(Protocol):
    """The operations of an `FsHandle` that grants have names for (G3)."""

    def list(self, prefix: Path | None = None) -> _Metas:
        """See `FsHandle.list`."""

    def file(self, path: Path) -> EntryMeta:
        """See `FsHandle.file`."""

    def read_binary(self, path: Path) -> bytes:
        """See `FsHandle.read_binary`."""

    def read_file(self, path: Path, index: int | None = None, line: int | None = None) -> str:
        """See `FsHandle.read_file`."""

    def read_re(self, path: Path, pattern: str, overlap: int | None = None) -> _Texts:
        """See `FsHandle.read_re`."""

    def write(self, path: Path, data: str | bytes, *, overwrite: bool = True) -> EntryMeta:
        """See `FsHandle.write`."""

    def delete(self, path: Path) -> None:
        """See `FsHandle.delete`."""


class FullHandle(Handle, Protocol):
    """All operations of an `FsHandle`."""

    def open(self, path: Path) -> BinaryIO:
        """See `FsHandle.open`."""

    def write_from(self, path: Path, source: Iterable[bytes], *, overwrite: bool = True) -> EntryMeta:
        """See `FsHandle.write_from`."""

    def scan(self, directory: Path) -> _Metas:
        """See `FsHandle.scan`."""

    def is_directory(self, path: Path) -> bool:
        """See `FsHandle.is_directory`."""

    def make_directory(self, path: Path) -> None:
        """See `FsHandle.make_directory`."""

    def remove_directory(self, path: Path) -> None:
        """See `FsHandle.remove_directory`."""

    def move(self, path: Path, target: Path, *, overwrite: bool = False) -> None:
        """See `FsHandle.move`."""


class HandleMaker(Protocol):
    """What makes handles: a `FileSystemBase`, or something that speaks to one."""

    def create_handle(self, grants: Iterable[Grant]) -> Handle:
        """See `FileSystemBase.create_handle`."""


def invoke(handle: Handle, operation: Operation, path: Path) -> object:
    """Call an operation by its name, with harmless arguments."""
    match operation:
        case "list":
            return handle.list(path)
        case "file":
            return handle.file(path)
        case "read_binary":
            return handle.read_binary(path)
        case "read_file":
            return handle.read_file(path)
        case "read_re":
            return handle.read_re(path, "x")
        case "write":
            return handle.write(path, "x")
        case "delete":
            handle.delete(path)
    return None
