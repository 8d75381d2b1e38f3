"""What conformance tests share: the operations that they call, and the features of a file system (G8). Needs pytest."""

from collections.abc import Iterable
from typing import BinaryIO, ClassVar, Protocol, cast

import pytest

from cfs_filesystem._types import OPERATIONS, EntryMeta, Grant, GrantedOperation, Operation, Path

# The interface that the tests need (G8)

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

    def write_from(
        self, path: Path, source: Iterable[bytes], *, overwrite: bool = True, version: str | None = None
    ) -> EntryMeta:
        """See `FsHandle.write_from`."""

    def delete(self, path: Path, *, version: str | None = None) -> None:
        """See `FsHandle.delete`."""

    def scan(self, directory: Path) -> _Metas:
        """See `FsHandle.scan`."""

    def is_directory(self, path: Path) -> bool:
        """See `FsHandle.is_directory`."""

    def make_directory(self, path: Path) -> None:
        """See `FsHandle.make_directory`."""

    def remove_directory(self, path: Path) -> None:
        """See `FsHandle.remove_directory`."""

    def remove_tree(self, path: Path) -> None:
        """See `FsHandle.remove_tree`."""

    def move(self, path: Path, target: Path, *, overwrite: bool = False, replace_directories: bool = False) -> None:
        """See `FsHandle.move`."""

    def copy(self, path: Path, target: Path, *, overwrite: bool = False, members: bool = True) -> None:
        """See `FsHandle.copy`."""


class HandleMaker(Protocol):
    """Creates handles: a `FileSystemBase`, or a client of one."""

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


# Shared by all tests: the prefix, the features of the file system, and handles (G8)


class Kit:
    """A subclass supplies the fixture `filesystem`, empty at `prefix`, and says where it is special."""

    prefix: ClassVar[Path] = "/"
    """Prefix below which the tests work; ends in `/`."""
    nested: ClassVar[bool] = True
    """Whether entries may have a path of several components below the prefix."""
    binary: ClassVar[bool] = True
    """Whether any bytes may be stored."""
    mounted: ClassVar[frozenset[str]] = frozenset()
    """Directories at the prefix that exist from the beginning, as `names` returns them."""
    complete: ClassVar[bool] = True
    """Whether handles have all operations, or only those that grants name."""
    empty_directories: ClassVar[bool] = True
    """Whether empty directories are supported."""
    moves_directories: ClassVar[bool] = True
    """Whether directories can be moved."""
    replaces_directories: ClassVar[bool] = True
    """Whether a move or copy can replace a directory, or replace something by one."""
    moves_over: ClassVar[bool] = True
    """Whether a move can replace an existing entry."""
    dated_directories: ClassVar[bool] = True
    """Whether directories have a time."""
    every_pair: ClassVar[bool] = True
    """Whether long tables are tried in full; a slow store may leave some of their rows out."""
    versions_of_writes: ClassVar[bool] = True
    """Whether a write of the same content makes a new version, where there are versions."""

    @pytest.fixture
    def filesystem(self) -> HandleMaker:
        """Make the file system that is tested."""
        raise NotImplementedError

    def stored(self, *writes: str) -> str:
        """Return what an entry holds after these writes: the last, unless writing means something else."""
        return writes[-1]

    def at(self, name: str) -> Path:
        """Return the path of a name that the tests may use."""
        return self.prefix + name

    def grant(self, filesystem: HandleMaker, *ops: GrantedOperation, prefix: Path | None = None) -> Handle:
        """Make a handle for some operations, or all of them, below the prefix."""
        return filesystem.create_handle([Grant(prefix=prefix or self.prefix, ops=set(ops) or set(OPERATIONS))])

    @pytest.fixture
    def handle(self, filesystem: HandleMaker) -> Handle:
        """Make a handle that may do everything below the prefix."""
        return self.grant(filesystem)

    @pytest.fixture
    def full(self, handle: Handle) -> FullHandle:
        """Take that handle for one with all operations, where there are such."""
        return self.with_all_operations(handle)

    def with_all_operations(self, handle: Handle) -> FullHandle:
        """Skip the test where handles have only the operations that grants have names for."""
        if not self.complete:
            pytest.skip("only the operations that grants have names for")
        return cast("FullHandle", handle)

    def full_grant(self, filesystem: HandleMaker, *ops: GrantedOperation, prefix: Path | None = None) -> FullHandle:
        """Make such a handle for some operations, or all of them, below the prefix."""
        return self.with_all_operations(self.grant(filesystem, *ops, prefix=prefix))

    @property
    def here(self) -> Path:
        """The directory that the tests work in; it need not exist before something is written."""
        return self.prefix[:-1] or "/"

    def names(self, metas: list[EntryMeta]) -> list[str]:
        """Return the names of a listing below the prefix; of a directory, with a `/`."""
        names = [meta["path"].removeprefix(self.prefix) + "/" * bool(meta.get("directory")) for meta in metas]
        return [name for name in names if name not in self.mounted]
