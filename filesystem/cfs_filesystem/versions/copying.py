"""Copies a folder on disk as it is: files, links, permissions and times. Contents are shared where the disk can."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from cfs_filesystem._directory_tree import DirectoryTree
from cfs_filesystem._disk import stamp_of
from cfs_filesystem._moving import move_directory
from cfs_filesystem._removing import box, remove_at_once

_CHUNK = 8 << 20


@contextmanager
def new_folder(
    tree: DirectoryTree, name: str, mode: int, *, durable: bool = False
) -> Iterator[tuple[DirectoryTree, int]]:
    """Make a folder in the root of a tree; yield a tree with this folder alone, and its inode.

    It becomes visible when the block ends. Raises `FileExistsError` if the name is taken by then.
    """
    with tree.directory([]) as root, box(root) as inside:
        os.mkdir(name, 0o700, dir_fd=inside)
        with closing(DirectoryTree(inside)) as hidden:
            yield hidden, hidden.stat([name]).st_ino
            with hidden.directory([name]) as descriptor:
                os.fchmod(descriptor, mode)
                if durable:
                    os.fsync(descriptor)
        move_directory(inside, name, root, name)
        if durable:
            os.fsync(root)


def remove_folder(tree: DirectoryTree, name: str) -> None:
    """Remove a folder in the root of a tree with everything in it."""
    with tree.directory([]) as root:
        remove_at_once(root, name)


def copy_folder(
    source: DirectoryTree,
    start: Sequence[str],
    paths: Iterable[str],
    target: DirectoryTree,
    new: Sequence[str],
    *,
    durable: bool = False,
) -> dict[str, str]:
    """Copy what is at some paths below `start`, folders before their contents, to the existing folder `new`.

    Returns the stamp of each file of the source, as it was copied. What is removed meanwhile is left out. Raises
    `OSError` if the disk refuses.
    """
    stamps: dict[str, str] = {}
    folders: list[tuple[list[str], os.stat_result]] = []
    for path in paths:
        old, parts = [*start, *path.split("/")], [*new, *path.split("/")]
        with target.parent(parts) as (directory, name), suppress(FileNotFoundError):
            status = source.stat(old)
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(name, 0o700, dir_fd=directory)
                folders.append((parts, status))
            elif stat.S_ISLNK(status.st_mode):
                with source.parent(old) as (source_directory, original):
                    os.symlink(os.readlink(original, dir_fd=source_directory), name, dir_fd=directory)
            else:
                stamps[path] = _copy_file(source, old, directory, name, durable=durable)
    for parts, status in reversed(folders):  # a read-only folder gets its permissions last
        with target.directory(parts) as descriptor:
            os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            if durable:
                os.fsync(descriptor)
    return stamps


def _copy_file(source: DirectoryTree, parts: Sequence[str], directory: int, name: str, *, durable: bool) -> str:
    original = source.open(parts)
    try:
        status = os.fstat(original)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        copy = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            _pour(original, copy)
            os.fchmod(copy, stat.S_IMODE(status.st_mode))
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
            if durable:
                os.fsync(copy)
        finally:
            os.close(copy)
        after = os.fstat(original)
        return stamp_of(status) if stamp_of(after) == stamp_of(status) else ""  # a program changed it meanwhile
    finally:
        os.close(original)


def _pour(source: int, target: int) -> None:
    """Copy a content. `copy_file_range` shares its blocks on disks that can, such as Btrfs and XFS."""
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # the disk cannot do this, or is full: then the loop below says so
            while os.copy_file_range(source, target, _CHUNK):
                pass
    while chunk := os.read(source, _CHUNK):  # from where the other call ended
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]
