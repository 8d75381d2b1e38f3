"""The hooks that a handle calls and every file system implements (G5).

Paths passed to hooks are valid and allowed. Several threads may call hooks at a time. A directory is passed as the
prefix of its content: `/`, `/a/`. `FileSystemBase` has defaults for all hooks but four.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

from cfs_filesystem._types import DirectoryMeta, EntryMeta, Grant, Path


class FileSystemHooks(ABC):
    """A set of entries and directories below registered prefixes."""

    prefixes: tuple[Path, ...]
    """The registered prefixes. Each ends in `/`, and every path is below one of them."""

    undeletable: tuple[Path, ...] = ()
    """Prefixes below which nothing can be deleted, moved away or replaced by a move, whatever the grants are."""

    @abstractmethod
    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
        """Return all entries by path, as a dict or another live mapping: a look-up should not copy all entries.

        `grants` are those of the handle; entries that none of them covers may be left out. A mapping that can find the
        entries below a prefix directly has a method `below(prefix) -> Iterable[tuple[Path, EntryMeta]]`.
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
        """Store the content atomically and return the metadata of the entry.

        Raises `ConflictError` if the entry exists and must not be overwritten, if the path is a directory of another
        entry, or if a parent of the path is an entry.
        """

    @abstractmethod
    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        """Store the chunks of a source as `_write_impl` does; if the source raises, nothing changes."""

    @abstractmethod
    def _replace_impl(self, path: Path, source: Iterable[bytes], version: str) -> EntryMeta:
        """Store the chunks in place of this version of the entry; raises `VersionError` if it has another one."""

    @abstractmethod
    def _delete_impl(self, path: Path) -> None:
        """Delete the entry; raises `ConflictError` if it was deleted meanwhile."""

    @abstractmethod
    def _delete_version_impl(self, path: Path, version: str) -> None:
        """Delete this version of the entry; raises `VersionError` if it has another one."""

    @abstractmethod
    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        """Move an entry or a directory; `FsHandle.move` has checked both paths."""

    @abstractmethod
    def _move_over_impl(self, path: Path, target: Path) -> None:
        """Move an entry or a directory over what is at the target, where one of the two is a directory.

        If it fails, both are as they were.
        """

    @abstractmethod
    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:
        """Copy an entry or a directory, with or without its members, over what is at the target if `overwrite`.

        Raises `ConflictError` if something is there otherwise. If it fails, the target is as it was.
        """

    @abstractmethod
    def _members(self, inside: Path) -> dict[Path, EntryMeta]:
        """Return the direct members of a directory by path; raises `NotFoundError` if it is not a directory."""

    @abstractmethod
    def _directory(self, inside: Path) -> DirectoryMeta | None:
        """Return the metadata of a directory, or None if there is none."""

    @abstractmethod
    def _make_directory_impl(self, path: Path) -> None:
        """Create an empty directory; raises `ConflictError` if the path exists."""

    @abstractmethod
    def _remove_directory_impl(self, path: Path) -> None:
        """Remove an empty directory; raises `ConflictError` if it is not empty, or was removed meanwhile."""

    @abstractmethod
    def _remove_tree_impl(self, path: Path) -> None:
        """Remove a directory with everything in it; raises `ConflictError` if it was removed meanwhile."""
