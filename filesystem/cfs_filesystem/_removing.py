"""Removes directories and what was left unfinished, without following links. All functions raise `OSError`."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from cfs_filesystem._descriptors import FILE, open_below
from cfs_filesystem._paths import MAX_DEPTH
from cfs_filesystem._temporary import ASIDE, TEMPORARY, lock_new, temporary_name


def remove_tree(directory: int, name: str) -> None:
    """Remove a directory with all that is below it on its file system, however deep; raises `OSError`.

    `shutil.rmtree` recurses and ends at about 1,000 levels. Here each directory is moved up into the top one before it
    is emptied.
    """
    top = open_below(directory, name)
    try:
        waiting = _subdirectories_after_removing_files(top)
        numbers = count()
        while waiting:
            folder = waiting.pop()
            below = open_below(top, folder)
            try:
                if os.fstat(below).st_dev != os.fstat(top).st_dev:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                for inner in _subdirectories_after_removing_files(below):
                    lifted = f"{temporary_name()}-{next(numbers)}"
                    os.rename(inner, lifted, src_dir_fd=below, dst_dir_fd=top)
                    waiting.append(lifted)
            finally:
                os.close(below)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=directory)


def _subdirectories_after_removing_files(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in names:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in names if is_directory]


def remove_empty(directory: int, name: str, depth: int = MAX_DEPTH) -> None:
    """Remove a directory that contains only empty directories; raises `OSError` if it contains anything else."""
    if not depth:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    below = open_below(directory, name)
    try:
        with os.scandir(below) as entries:
            for entry in entries:
                remove_empty(below, entry.name, depth - 1)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=directory)


def remove_at_once(directory: int, name: str) -> None:
    """Remove a directory with everything in it. The first step takes its name, so none of it is seen any more."""
    rubbish = temporary_name()
    try:
        os.rename(name, rubbish, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remove_tree(directory, name)  # on a full disk there may be no space for a name
        return
    with suppress(OSError):  # what cannot be removed now is removed at the next start
        remove_tree(directory, rubbish)


@contextmanager
def box(directory: int, prefix: str = TEMPORARY) -> Iterator[int]:
    """Create a directory that no caller sees. It is removed with everything in it when the block ends.

    If the block of `set_aside` raises, what could not get its name back stays. It is locked while it is used.
    """
    name = temporary_name(prefix)
    os.mkdir(name, 0o700, dir_fd=directory)
    inside = open_below(directory, name)
    try:
        lock_new(inside)
        yield inside
    except BaseException:
        with suppress(OSError):
            if prefix == ASIDE:
                os.rmdir(name, dir_fd=directory)
            else:
                remove_at_once(directory, name)
        raise
    else:
        with suppress(OSError):  # the next start removes it
            remove_at_once(directory, name)
    finally:
        os.close(inside)


def remove_leftovers(directory: int, name: str) -> None:
    """Remove unfinished files of killed writers from one directory."""
    below = open_below(directory, name)
    try:
        with os.scandir(below) as entries:
            for leftover in [entry.name for entry in entries if entry.name.startswith(TEMPORARY)]:
                with suppress(OSError):
                    remove_unlocked(below, leftover)
    finally:
        os.close(below)


def remove_unlocked(directory: int, name: str) -> None:
    """Remove an unfinished file or directory; raises `OSError` if another process has locked it.

    What a killed move had put aside gets its name back, unless the move had replaced it.
    """
    descriptor = os.open(name, FILE, dir_fd=directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if name.startswith(ASIDE):
            _restore(directory, descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            remove_at_once(directory, name)
        else:
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(descriptor)


def _restore(directory: int, box: int) -> None:
    """Move everything in a directory one up, where its name is free."""
    for name in os.listdir(box):
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, name, src_dir_fd=box, dst_dir_fd=directory)
