"""Puts entries of the past back into a folder on disk.

Each file is replaced as a whole, so that other programs see the old or the new one. Doing it again changes nothing, so
an interrupted restoration may simply be repeated. It must be repeated after a power loss: folders are flushed at the
end. Several files are put at a time, because the disk flushes them together.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from cfs_filesystem._directory_tree import DirectoryTree
from cfs_filesystem._disk import stamp_of
from cfs_filesystem._replacing import FileChunks, replace
from cfs_filesystem.versions.model import Entry, EntryType
from cfs_filesystem.versions.tree import Contents, RestoredFiles, parents

_CHUNK = 1 << 20
_THREADS = 8
"""So many files are put at a time."""
_GONE = (FileNotFoundError, NotADirectoryError)
_MEANWHILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def restore(
    tree: DirectoryTree,
    start: Sequence[str],
    contents: Contents,
    entries: Mapping[str, Entry | None],
    *,
    durable: bool = False,
) -> RestoredFiles:
    """Make what is at each path, below `start` in the tree, what its entry says; None removes it.

    With `durable` all of it is on the disk at the end. A path is left where a folder holds files that no entry
    names. Raises `OSError` if the disk refuses, such as when it is full.
    """
    refused: list[str] = []
    deepest_first = sorted(entries, key=lambda path: path.count("/"), reverse=True)
    for path in deepest_first:
        _make_way(tree, [*start, *path.split("/")], entries[path], path, refused)
    files: dict[str, Entry] = {}
    for path in reversed(deepest_first):
        entry = entries[path]
        if entry is not None and path not in refused:
            if entry.type is EntryType.FILE:
                files[path] = entry
            else:
                _put(tree, [*start, *path.split("/")], contents, entry, durable=durable)
    for path in {path.rpartition("/")[0]: path for path in files}.values():
        with tree.made_parent([*start, *path.split("/")], durable=durable):  # else two threads would make the same one
            pass
    stamps: dict[str, str] = {}
    with ThreadPoolExecutor(_THREADS, "restore") as threads:
        waiting: deque[tuple[str, Future[os.stat_result]]] = deque()
        for path, entry in files.items():
            if len(waiting) == _THREADS:
                done, future = waiting.popleft()
                stamps[done] = stamp_of(future.result())
            source = contents(entry)  # in this thread, which may hold the only connection to the store that is free
            put = partial(_put_file, tree, [*start, *path.split("/")], source, entry.mode, durable=durable)
            waiting.append((path, threads.submit(put)))
        stamps |= {path: stamp_of(future.result()) for path, future in waiting}
    if durable:
        _flush(tree, start, entries)
    for path in deepest_first:  # when all is in them: they may be read-only
        entry = entries[path]
        if entry is not None and entry.type is EntryType.FOLDER and path not in refused:
            with tree.directory([*start, *path.split("/")]) as descriptor:
                os.fchmod(descriptor, entry.mode)
                if durable:
                    os.fsync(descriptor)
    return RestoredFiles(stamps, refused)


def _flush(tree: DirectoryTree, start: Sequence[str], entries: Mapping[str, Entry | None]) -> None:
    """Flush all folders above entries."""
    for path in {parent for changed in entries for parent in ("", *parents(changed))}:
        try:
            with tree.directory([*start, *path.split("/")] if path else start) as descriptor:
                os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _MEANWHILE:
                raise  # else another program has replaced or removed it


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
    """Put a folder or a link at a path."""
    with tree.made_parent(parts, durable=durable) as (directory, name):
        if entry.type is EntryType.FOLDER:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=directory)
        else:
            with contents(entry) as target:
                os.symlink(target.read(), os.fsencode(name), dir_fd=directory)


def _put_file(tree: DirectoryTree, parts: list[str], source: BinaryIO, mode: int, *, durable: bool) -> os.stat_result:
    """Put a content as a file at a path, and close it. Return the status of the file."""
    with (
        source,
        tree.made_parent(parts, durable=durable) as (directory, name),
        FileChunks(iter(partial(source.read, _CHUNK), b"")) as content,
    ):
        return replace(
            directory, name, content, mode=lambda: mode, overwrite=True, durable=durable, flush=lambda _: None
        )
