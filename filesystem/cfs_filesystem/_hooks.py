"""The operations that a handle calls, and that every file system implements (G5).

Hooks get paths that are valid and allowed, use them as they are, and may be called by several threads. A directory is
passed as the prefix of its content: `/`, `/a/`. `FileSystemBase` has a default for all but four of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

from cfs_filesystem._types import DirectoryMeta, EntryMeta, Grant, Path


class FileSystemHooks(ABC):
    """A set of entries and directories below registered prefixes."""

    prefixes: tuple[Path, ...]
    """Each ends in `/`; every path is below one of them."""

    undeletable: tuple[Path, ...] = ()
    """Prefixes below which no handle deletes, moves away or replaces by a move, whatever its grants say."""

    # -- entries --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
        """Return all entries by path: a dict, or another live mapping, so that one look-up does not cost a copy.

        `grants` are those of the handle; what none of them covers may be left out. A mapping that finds what is below
        a prefix without going through all has a method `below(prefix) -> Iterable[tuple[Path, EntryMeta]]`.
        """

    @abstractmethod
    def _read_binary_impl(self, path: Path) -> bytes:
        """Return the content; raises `NotFoundError` if the entry was deleted meanwhile."""

    @abstractmethod
    def _open_impl(self, path: Path) -> BinaryIO:
        """Open the content for reading, seekable; raises `NotFoundError` if the entry was deleted meanwhile."""

    @abstractmethod
    def _read_file_impl(self, path: Path, *, index: int | None, line: int | None) -> str:
        """Return lines of the content; see `FsHandle.read_file`."""

    @abstractmethod
    def _read_re_impl(self, path: Path, pattern: str, overlap: int | None) -> list[str]:
        """Return the matches in the content; see `FsHandle.read_re`."""

    @abstractmethod
    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        """Store the content, all of it or nothing, and return the metadata of the entry.

        Raises `ConflictError` when the entry exists and must not be overwritten, or when the path is a directory of
        another entry or the other way round.
        """

    @abstractmethod
    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        """Store the chunks of a source as `_write_impl` does; if the source raises, nothing changes."""

    @abstractmethod
    def _delete_impl(self, path: Path) -> None:
        """Delete the entry; raises `ConflictError` if it was deleted meanwhile."""

    @abstractmethod
    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        """Give an entry or a directory another path; `FsHandle.move` has checked both."""

    # -- directories ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _members(self, inside: Path) -> dict[Path, EntryMeta]:
        """Return what is directly in a directory, by path; raises `NotFoundError` if it is no directory."""

    @abstractmethod
    def _directory(self, inside: Path) -> DirectoryMeta | None:
        """Return the metadata of a directory, or None if there is none."""

    @abstractmethod
    def _make_directory_impl(self, path: Path) -> None:
        """Make an empty directory; raises `ConflictError` when the path exists."""

    @abstractmethod
    def _remove_directory_impl(self, path: Path) -> None:
        """Remove an empty directory; raises `ConflictError` when it is not empty, or was removed meanwhile."""
