"""A directory of the disk as a logical file system (G6).

What is no entry there (see `_disk_entries`) is not listed, not read, and not written over. docs/filesystem.md says what
is guaranteed against whom.
"""

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from cfs_filesystem._base import FileSystemBase
from cfs_filesystem._disk_entries import DiskEntries, DiskIndex, meta_of
from cfs_filesystem._drafts import Content, SourceFailed, replace
from cfs_filesystem._errors import ConflictError, NotFoundError
from cfs_filesystem._moves import move_directory, move_file
from cfs_filesystem._openat import holds_nothing, read_all, remove_empty, remove_leftovers
from cfs_filesystem._os_errors import again_while_directories_change, in_logical_words
from cfs_filesystem._types import EntryMeta, Grant, Path


class DiskFileSystem(DiskEntries, FileSystemBase):
    """The files below a directory of the disk: a path, made if it does not exist, or a descriptor, which is not kept.

    `prefix` is the logical path of that directory. With `durable` a change returns when the disk has it, not just the
    operating system. With `hard_links` files that have several names are entries; otherwise they are refused, for the
    other name may be outside. With `private` what is made here is for its owner alone (files 0600, directories 0700).
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | int,
        *,
        prefix: Path = "/",
        durable: bool = False,
        hard_links: bool = False,
        private: bool = False,
    ) -> None:
        FileSystemBase.__init__(self, [prefix])
        DiskEntries.__init__(self, root, prefix, hard_links=hard_links, private=private)
        self._durable = durable
        self._new_file = 0o600 if private else None
        self._tree.sweep()

    def close(self) -> None:
        """Let go of the directory; happens by itself when the object is gone."""
        self._tree.close()

    # -- reading --------------------------------------------------------------------------------------------------

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        self._tree.require_open()
        return DiskIndex(self)

    def _read_binary_impl(self, path: Path) -> bytes:
        with in_logical_words(path, NotFoundError):
            descriptor, status = self._open_file(path)
            try:
                return read_all(descriptor, status.st_size)
            finally:
                os.close(descriptor)

    def _open_impl(self, path: Path) -> BinaryIO:
        with in_logical_words(path, NotFoundError):
            return os.fdopen(self._open_file(path)[0], "rb")

    def _open_file(self, path: Path) -> tuple[int, os.stat_result]:
        descriptor = self._tree.open(self._parts(path))
        try:
            status = self._patiently(lambda: os.fstat(descriptor))
            self._require_file(path, status)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, status

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        return self._store(path, [data], overwrite=overwrite)

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        return self._store(path, source, overwrite=overwrite)

    def _store(self, path: Path, chunks: Iterable[bytes], *, overwrite: bool) -> EntryMeta:
        parts, durable = self._parts(path), self._durable
        with Content(chunks) as content:

            def write() -> EntryMeta:
                with self._tree.made_parent(parts, durable=durable) as (directory, name):
                    self._replaceable(path, directory, name)  # before a source is asked for everything
                    mode = partial(self._make_room, path, directory, name)
                    return meta_of(
                        path, replace(directory, name, content, mode=mode, overwrite=overwrite, durable=durable)
                    )

            try:
                return again_while_directories_change(path, write)
            except SourceFailed as failed:
                error = failed.error
            raise error

    def _delete_impl(self, path: Path) -> None:
        gone = ConflictError(f"{path!r} was deleted by somebody else", path)
        with in_logical_words(path, ConflictError):
            try:
                with self._tree.parent(self._parts(path)) as (directory, name):
                    status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
                    self._require_file(path, status)
                    os.unlink(name, dir_fd=directory)
            except (NotFoundError, FileNotFoundError):
                raise gone from None

    def _replaceable(self, path: Path, directory: int, name: str) -> os.stat_result | None:
        """Return what a write would replace: a file, a directory with no entries, or None for nothing; or raise."""
        try:
            status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
            if stat.S_ISDIR(status.st_mode):
                _require_bare(path, directory, name)
            else:
                self._require_file(path, status)
        except FileNotFoundError:
            return None
        except NotFoundError:
            raise ConflictError(f"{path!r} is something other than a file", path) from None
        return status

    def _make_room(self, path: Path, directory: int, name: str) -> int | None:
        """Remove an empty directory that is in the way, or return the permissions of the file that is."""
        status = self._replaceable(path, directory, name)
        if status is None:
            return self._new_file
        if stat.S_ISDIR(status.st_mode):
            remove_empty(directory, name)  # something that came to be in it meanwhile means: look again
            return self._new_file
        return stat.S_IMODE(status.st_mode) & 0o777

    # -- directories ----------------------------------------------------------------------------------------------

    def _make_directory_impl(self, path: Path) -> None:
        # what is above was there when the gate looked, but for the root of a mount, which need not be
        parts = self._parts(path)

        def make() -> None:
            with self._tree.made_parent(parts, durable=self._durable) as (directory, name):
                os.mkdir(name, self._tree.directory_mode, dir_fd=directory)
                self._settle(directory)

        again_while_directories_change(path, make)

    def _remove_directory_impl(self, path: Path) -> None:
        with in_logical_words(path, ConflictError):
            try:
                with self._tree.parent(self._parts(path)) as (directory, name):
                    try:
                        os.rmdir(name, dir_fd=directory)
                    except OSError as error:
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                            raise
                        remove_leftovers(directory, name)
                        os.rmdir(name, dir_fd=directory)
                    self._settle(directory)
            except FileExistsError:
                raise ConflictError(f"{path!r} is not empty", path) from None
            except (FileNotFoundError, NotADirectoryError):
                raise ConflictError(f"the directory {path!r} was taken away by somebody else", path) from None

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        with (
            in_logical_words(path, ConflictError),
            self._tree.parent(self._parts(path)) as (source, name),
            in_logical_words(target, ConflictError),
            self._tree.parent(self._parts(target)) as (destination, new),
        ):
            with in_logical_words(path, ConflictError):
                status = self._patiently(lambda: os.stat(name, dir_fd=source, follow_symlinks=False))
            if stat.S_ISDIR(status.st_mode):
                move_directory(source, name, destination, new)
            else:
                self._require_mine(path, status)
                self._require_no_directory(target, destination, new)
                move_file(source, name, destination, new, overwrite=overwrite)
            self._settle(destination)
            self._settle(source)

    def _require_mine(self, path: Path, status: os.stat_result) -> None:
        try:
            self._require_file(path, status)
        except NotFoundError:
            raise ConflictError(f"{path!r} is something other than a file", path) from None

    def _require_no_directory(self, path: Path, directory: int, name: str) -> None:
        """Raise unless a file may be moved here: there is one, or nothing."""
        with suppress(FileNotFoundError):
            status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
            if stat.S_ISDIR(status.st_mode):
                raise ConflictError(f"{path!r} is a directory", path)
            self._require_mine(path, status)

    def _settle(self, directory: int) -> None:
        if self._durable:
            os.fsync(directory)


def _require_bare(path: Path, directory: int, name: str) -> None:
    """Raise unless nothing but directories is below a directory: logical paths have none, so those give way."""
    bare = False
    with suppress(RecursionError):
        bare = holds_nothing(directory, name)
    if not bare:
        raise ConflictError(f"{path!r} is a directory: there are entries below it", path)
