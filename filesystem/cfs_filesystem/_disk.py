"""A directory of the disk as a logical file system (G6).

What is a regular file with one name, and reached without a link, is an entry; its path is its place below the root.
Everything else (links, pipes, devices, names that are no legal path) is not there: it is not listed, not read, and not
written over. docs/filesystem.md says what is guaranteed against whom.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from cfs_filesystem._base import FileSystemBase
from cfs_filesystem._errors import (
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    InvalidPathError,
    NotFoundError,
)
from cfs_filesystem._openat import TEMPORARY, Tree, read_all, remove_empty, replace
from cfs_filesystem._paths import covers, validate_path
from cfs_filesystem._types import EntryMeta, Grant, Path, VersionedEntryMeta

_T = TypeVar("_T")

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_CHANGED = {errno.ENOENT, errno.ENOTEMPTY}
"""How a directory that was removed, or made, under our feet shows itself."""
_ATTEMPTS = 100
_PATIENCE = 10


class DiskFileSystem(FileSystemBase):
    """The files below a directory of the disk, which is made if it does not exist.

    `prefix` is the logical path of that directory. With `durable` a write returns when the disk has it, not just the
    operating system. With `hard_links` files that have several names are entries; otherwise they are refused, for the
    other name may be outside.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        prefix: Path = "/",
        durable: bool = False,
        hard_links: bool = False,
    ) -> None:
        super().__init__([prefix])
        self._prefix = prefix
        self._durable = durable
        self._hard_links = hard_links
        self._tree = Tree(root)
        self._tree.sweep()

    def close(self) -> None:
        """Let go of the directory; happens by itself when the object is gone."""
        self._tree.close()

    # -- hooks ----------------------------------------------------------------------------------------------------

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        self._tree.require_open()
        return _DiskIndex(self)

    def _read_binary_impl(self, path: Path) -> bytes:
        try:
            descriptor = self._tree.open(self._parts(path))
            try:
                status = self._patiently(lambda: os.fstat(descriptor))
                self._require_file(path, status)
                return read_all(descriptor, status.st_size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _translated(path, error, NotFoundError) from None

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        parts = self._parts(path)

        def write() -> EntryMeta:
            durable = self._durable
            with self._tree.made_parent(parts, durable=durable) as (directory, name):
                mode = self._mode_of(path, directory, name)
                status = replace(directory, name, data, mode=mode, overwrite=overwrite, durable=durable)
                return _meta(path, status)

        return _again_while_directories_change(path, write)

    def _delete_impl(self, path: Path) -> None:
        try:
            with self._tree.parent(self._parts(path)) as (directory, name):
                status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
                self._require_file(path, status)
                os.unlink(name, dir_fd=directory)
        except (NotFoundError, FileNotFoundError):
            raise ConflictError(f"{path!r} was deleted by somebody else", path) from None
        except OSError as error:
            raise _translated(path, error, ConflictError) from None

    # -- what is where --------------------------------------------------------------------------------------------

    def look(self, path: Path) -> EntryMeta:
        """Describe an entry; raises `NotFoundError`, and `InvalidPathError` for links."""
        parts = self._parts(path)
        try:
            status = self._patiently(lambda: self._tree.stat(parts))
        except OSError as error:
            raise _translated(path, error, NotFoundError) from None
        self._require_file(path, status)
        return _meta(path, status)

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Go through the entries that a prefix covers, in any order."""
        if prefix != self._prefix and covers(self._prefix, prefix):
            if not prefix.endswith("/"):
                with suppress(FileSystemError):
                    yield prefix, self.look(prefix)
            start = prefix.removeprefix(self._prefix).removesuffix("/")
            yield from self._walk(start.split("/"))
        elif covers(prefix, self._prefix):
            yield from self._walk([])

    def _walk(self, start: Sequence[str]) -> Iterator[tuple[Path, EntryMeta]]:
        for parts, _, entry in self._tree.walk(start, self._is_legal):
            try:
                status = entry.stat(follow_symlinks=False)
                path = self._prefix + "/".join(parts)
                self._require_file(path, status)
            except (OSError, FileSystemError):
                continue
            yield path, _meta(path, status)

    def _parts(self, path: Path) -> list[str]:
        """Take a valid path apart; raise `InvalidPathError` for what is ours."""
        parts = path[len(self._prefix) :].split("/")
        if TEMPORARY in path and any(part.startswith(TEMPORARY) for part in parts):
            raise InvalidPathError(f"{path!r} is no path: {TEMPORARY!r} begins the names of unfinished files", path)
        return parts

    def _is_legal(self, parts: Sequence[str]) -> bool:
        try:
            self._parts(validate_path(self._prefix + "/".join(parts)))
        except InvalidPathError:
            return False
        return True

    def _require_file(self, path: Path, status: os.stat_result) -> None:
        """Raise unless this is a file that can only be reached by this path."""
        if stat.S_ISLNK(status.st_mode):
            raise InvalidPathError(f"{path!r} is a symbolic link", path)
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(f"there is no entry {path!r}", path)
        if status.st_nlink > 1 and not self._hard_links:
            raise InvalidPathError(f"{path!r} is a hard link: the same file has another name", path)

    def _patiently(self, look: Callable[[], os.stat_result]) -> os.stat_result:
        """Look at a file; once more where it has several names, for a writer that cannot do without may be at it.

        Where files without a name are not to be had, one that must not overwrite links its file to the name and then
        unlinks the temporary one.
        """
        for _ in range(_PATIENCE):
            status = look()
            if status.st_nlink == 1 or self._hard_links or not stat.S_ISREG(status.st_mode):
                break
            time.sleep(0.001)
        return status

    def _mode_of(self, path: Path, directory: int, name: str) -> int | None:
        """Return the permissions of what will be replaced; None if that is nothing. Raise if it is no file."""
        try:
            status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode):
            _remove_directory(path, directory, name)
            return None
        try:
            self._require_file(path, status)
        except NotFoundError:
            raise ConflictError(f"{path!r} is something other than a file", path) from None
        return stat.S_IMODE(status.st_mode) & 0o777


class _DiskIndex(Mapping[Path, EntryMeta]):
    """The entries as they are at the moment of asking; one that is not asked for costs nothing."""

    def __init__(self, disk: DiskFileSystem) -> None:
        self._disk = disk

    def __getitem__(self, path: Path) -> EntryMeta:
        try:
            return self._disk.look(path)
        except NotFoundError:
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[Path]:
        return (path for path, _ in self.below("/"))

    def __len__(self) -> int:
        return sum(1 for _ in self.below("/"))

    def below(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Go through one directory of the disk only."""
        return self._disk.entries(prefix)


def _meta(path: Path, status: os.stat_result) -> EntryMeta:
    version = f"{status.st_ino:x}-{status.st_ctime_ns:x}-{status.st_size:x}"  # not mtime: anybody can set that back
    return VersionedEntryMeta(path=path, size=status.st_size, updated_at=status.st_mtime, version=version)


def _remove_directory(path: Path, directory: int, name: str) -> None:
    """Make room for a file: logical paths have no directories, so an empty one does not count."""
    try:
        remove_empty(directory, name)
    except FileNotFoundError:
        raise
    except (OSError, RecursionError):
        raise ConflictError(f"{path!r} is a directory: there are entries below it", path) from None


def _again_while_directories_change(path: Path, action: Callable[[], _T]) -> _T:
    """Do it again when a directory is removed or made by somebody else meanwhile.

    Removing takes them one that was there, and nobody makes directories without end, so this comes to its own.
    """
    for _ in range(_ATTEMPTS):
        try:
            return action()
        except OSError as error:
            if error.errno not in _CHANGED:
                raise _translated(path, error, ConflictError) from None
    raise ConflictError(f"the directories of {path!r} are being made and removed all the time", path)


def _translated(path: Path, error: OSError, absent: type[FileSystemError]) -> Exception:
    """Say in logical words what the operating system said; `absent` is what a missing or blocked path means."""
    if error.errno == errno.ELOOP:
        return InvalidPathError(f"a symbolic link stands in the way of {path!r}", path)
    if error.errno == errno.EEXIST:
        return ConflictError(f"{path!r} exists", path)
    if error.errno == errno.ENAMETOOLONG:
        return InvalidPathError(f"{path!r} is too long for this disk", path)
    if error.errno in _REFUSED:
        return AccessDeniedError(f"the operating system does not allow it at {path!r}", path)
    if error.errno in _ABSENT and absent is NotFoundError:
        return NotFoundError(f"there is no entry {path!r}", path)
    if error.errno in _ABSENT:
        return ConflictError(f"an entry above or below {path!r} is in the way", path)
    return OSError(error.errno, os.strerror(error.errno or 0), path)
