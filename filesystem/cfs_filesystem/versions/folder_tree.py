"""The files of a workspace in a folder on disk.

Regular files, folders and symbolic links are seen, with their permissions, whatever bytes their names have. Pipes,
sockets and devices are not, nor is what is below a mount point.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import BinaryIO, Self

from cfs_filesystem._directory_tree import DirectoryTree
from cfs_filesystem._disk import stamp_of
from cfs_filesystem._errors import FileSystemError
from cfs_filesystem._temporary import TEMPORARY
from cfs_filesystem.versions.copying import copy_folder, new_folder, remove_folder
from cfs_filesystem.versions.model import Entry, EntryType
from cfs_filesystem.versions.restoring import restore
from cfs_filesystem.versions.tree import Contents, RestoredFiles, TreeStatus, parents

MEANWHILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EISDIR})
"""Errors of a path at which a program has removed something, or put something else, since it was looked at."""


class FolderTree:
    """A `VersionedTree` in the folder `start` below the root of a tree.

    With `durable` what is put there is on the disk when a method returns.
    """

    compares = False

    def __init__(self, tree: DirectoryTree, start: Iterable[str] = (), *, durable: bool = False) -> None:
        self._tree = tree
        self._start = tuple(start)
        self._durable = durable

    def view(self, paths: Collection[str]) -> Self:  # noqa: ARG002
        """See `VersionedTree`."""
        return self

    def status(self, path: str) -> TreeStatus | None:
        """See `VersionedTree`."""
        try:
            status = self._tree.stat(self._parts(path))
        except OSError as error:
            if error.errno in MEANWHILE:
                return None
            raise
        return _status(status)

    def mode(self, path: str) -> int:
        """See `VersionedTree`."""
        status = self.status(path)
        return 0o644 if status is None else status.mode

    def above(self, path: str) -> dict[str, TreeStatus]:
        """See `VersionedTree`."""
        statuses = {parent: self.status(parent) for parent in parents(path)}
        return {
            name: status for name, status in statuses.items() if status is not None and status.type is EntryType.FOLDER
        }

    def above_written(self, path: str) -> dict[str, TreeStatus]:
        """See `VersionedTree`."""
        return self.above(path)

    def present(self, path: str = "", skip: frozenset[str] = frozenset()) -> Iterator[tuple[str, TreeStatus]]:
        """See `VersionedTree`."""
        try:
            status = self._tree.stat(self._parts(path) or ["."])
        except (OSError, FileSystemError):
            return
        if path and (recorded := _status(status)) is not None:
            yield path, recorded
        waiting = [path] if stat.S_ISDIR(status.st_mode) else []
        with self._tree.visitor() as visitor:
            while waiting:
                folder = waiting.pop()
                with suppress(OSError, FileSystemError):
                    directory = visitor.enter(self._parts(folder))
                    for entry, recorded in _members(directory):
                        name = f"{folder}/{entry}" if folder else entry
                        if recorded.type is EntryType.FOLDER:
                            if entry in skip:
                                continue
                            waiting.append(name)
                        yield name, recorded

    def open(self, path: str) -> tuple[BinaryIO, str]:
        """See `VersionedTree`."""
        parts = self._parts(path)
        with self._tree.parent(parts) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(name, dir_fd=directory)
                return BytesIO(os.fsencode(target)), stamp_of(status)
        file = os.fdopen(self._tree.open(parts), "rb")
        try:
            return file, stamp_of(os.fstat(file.fileno()))
        except BaseException:
            file.close()
            raise

    def open_before(self, path: str) -> BinaryIO | None:
        """See `VersionedTree`."""
        with suppress(OSError):
            return os.fdopen(self._tree.open(self._parts(path)), "rb")
        return None

    def restore(
        self,
        entries: Mapping[str, Entry | None],
        contents: Contents,
        replaced: Mapping[str, Entry | None],  # noqa: ARG002
    ) -> RestoredFiles:
        """See `VersionedTree`."""
        return restore(self._tree, self._start, contents, entries, durable=self._durable)

    def room(self) -> int | None:
        """See `VersionedTree`."""
        with self._tree.directory(self._start) as directory:
            status = os.fstatvfs(directory)
        return status.f_bavail * status.f_frsize

    def copy(self, present: Iterable[tuple[str, TreeStatus]], target: Self) -> dict[str, str]:
        """See `VersionedTree`."""
        paths = (path for path, _ in present)
        return copy_folder(self._tree, self._start, paths, target._tree, target._start, durable=target._durable)

    def _parts(self, path: str) -> list[str]:
        return [*self._start, *(path.split("/") if path else ())]


class FolderTrees:
    """`VersionedTrees` that are folders in the root of a tree."""

    def __init__(self, tree: DirectoryTree, *, durable: bool) -> None:
        self._tree = tree
        self._durable = durable

    def tree(self, workspace: str) -> FolderTree:
        """See `VersionedTrees`."""
        return FolderTree(self._tree, [workspace], durable=self._durable)

    def vacate(self, workspace: str) -> bool:
        """See `VersionedTrees`."""
        with suppress(OSError), self._tree.parent([workspace]) as (directory, last):
            os.rmdir(last, dir_fd=directory)
            return True
        return False

    @contextmanager
    def new(self, workspace: str, mode: int) -> Iterator[tuple[FolderTree, int]]:
        """See `VersionedTrees`. The mark is the inode of the folder."""
        with new_folder(self._tree, workspace, mode, durable=self._durable) as (hidden, inode):
            yield FolderTree(hidden, [workspace], durable=self._durable), inode

    def remove(self, workspace: str, mark: int, is_known: Callable[[str, TreeStatus], bool]) -> bool:  # noqa: ARG002
        """See `VersionedTrees`."""
        try:
            inode = self._tree.stat([workspace]).st_ino
        except FileNotFoundError:
            return True
        if inode == mark:  # not one that a program has made under this name
            remove_folder(self._tree, workspace)
        return inode == mark


def folders_in(tree: DirectoryTree) -> dict[str, int]:
    """Return the names of the folders in a directory, with their permissions. Links are none."""
    with tree.directory(()) as directory, os.scandir(directory) as entries:
        return {
            entry.name: stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(TEMPORARY)
        }


def _members(directory: int) -> Iterator[tuple[str, TreeStatus]]:
    """Yield the name and the status of what is recorded of a directory: nothing temporary, and no mount points."""
    device = os.fstat(directory).st_dev
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY):
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if status.st_dev == device and (recorded := _status(status)) is not None:
                    yield entry.name, recorded


def _status(status: os.stat_result) -> TreeStatus | None:
    """Return what is recorded of a status; None for pipes, sockets and devices."""
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return TreeStatus(EntryType.FOLDER, mode)
    if stat.S_ISREG(status.st_mode):
        return TreeStatus(EntryType.FILE, mode, status.st_size, stamp_of(status))
    if stat.S_ISLNK(status.st_mode):
        return TreeStatus(EntryType.LINK, mode, status.st_size, stamp_of(status))
    return None
