"""Puts entries of the past back into a folder on disk.

Each file is replaced as a whole, so that other programs see the old or the new one. Doing it again changes nothing, so
an interrupted restoration may simply be repeated. It must be repeated after a power loss: the files are flushed
together, at the end, because the disk then writes them at once.
"""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeGuard

from cfs_filesystem._openat import DirectoryTree, FileChunks, replace
from cfs_filesystem.versions.model import Entry, EntryType
from cfs_filesystem.versions.tree import Contents, parents

_CHUNK = 1 << 20
_GONE = (FileNotFoundError, NotADirectoryError)
_MEANWHILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def restore(
    tree: DirectoryTree,
    start: Sequence[str],
    contents: Contents,
    entries: Mapping[str, Entry | None],
    *,
    durable: bool = False,
) -> list[str]:
    """Make what is at each path, below `start` in the tree, what its entry says; None removes it.

    With `durable` all of it is flushed to the disk at the end. Returns the paths where this is not possible because a
    folder holds files that no entry names. Raises `OSError` if the disk refuses, such as when it is full.
    """
    refused: list[str] = []
    deepest_first = sorted(entries, key=lambda path: path.count("/"), reverse=True)
    for path in deepest_first:
        _make_way(tree, [*start, *path.split("/")], entries[path], path, refused)
    for path in reversed(deepest_first):
        entry = entries[path]
        if entry is not None and path not in refused:
            _put(tree, [*start, *path.split("/")], contents, entry, durable=durable)
    if durable:
        _flush(tree, start, entries)
    for path in deepest_first:  # when all is in them: they may be read-only
        entry = entries[path]
        if entry is not None and entry.type is EntryType.FOLDER and path not in refused:
            with tree.directory([*start, *path.split("/")]) as descriptor:
                os.fchmod(descriptor, entry.mode)
                if durable:
                    os.fsync(descriptor)
    return refused


def _flush(tree: DirectoryTree, start: Sequence[str], entries: Mapping[str, Entry | None]) -> None:
    """Flush the files of entries, unless they were when they were written, and all folders above entries."""
    files = [path for path, entry in entries.items() if _can_be_read(entry) and entry.type is EntryType.FILE]
    folders = {parent for path in entries for parent in parents(path)}
    for path in (*files, *folders, "."):
        try:
            descriptor = tree.open([*start, *path.split("/")])
        except OSError as error:
            if error.errno not in _MEANWHILE:
                raise
            continue  # another program has replaced or removed it
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _can_be_read(entry: Entry | None) -> TypeGuard[Entry]:
    return entry is not None and entry.mode & stat.S_IRUSR != 0


def _make_way(tree: DirectoryTree, parts: list[str], entry: Entry | None, path: str, refused: list[str]) -> None:
    """Remove what is at a path, unless it is a file or folder and another one is to be put there."""
    entry_type = None if entry is None else entry.type
    with suppress(*_GONE), tree.parent(parts) as (directory, name):
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if entry_type is EntryType.FOLDER:
                return
            try:
                os.rmdir(name, dir_fd=directory)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                    raise
                refused.append(path)
        elif entry_type is not EntryType.FILE or not stat.S_ISREG(mode):
            os.unlink(name, dir_fd=directory)


def _put(tree: DirectoryTree, parts: list[str], contents: Contents, entry: Entry, *, durable: bool) -> None:
    with tree.made_parent(parts, durable=durable) as (directory, name):
        if entry.type is EntryType.FOLDER:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=directory)
        elif entry.type is EntryType.LINK:
            with contents(entry) as target:
                os.symlink(target.read(), os.fsencode(name), dir_fd=directory)
        else:
            at_once = durable and not _can_be_read(entry)
            with contents(entry) as source, FileChunks(iter(partial(source.read, _CHUNK), b"")) as content:
                replace(directory, name, content, mode=lambda: entry.mode, overwrite=True, durable=at_once)
