"""Moves files and directories, and does not replace an existing name by mistake (G6).

`rename(2)` replaces its target. So a free name is first taken by a call that fails if the name exists, or the system
is asked to check this (`renameat2`, which Python does not offer). All functions raise `OSError`.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cfs_filesystem._removing import box
from cfs_filesystem._temporary import ASIDE, temporary_name

_RENAMEAT2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
_NO_REPLACE = 1


def move_file(source: int, name: str, target: int, new: str, *, overwrite: bool) -> None:
    """Move a file to another directory; raises `FileExistsError` if the name exists, unless `overwrite`.

    Without `overwrite`, and where the system cannot do this in one step, the file has both names for an instant.
    (Reserving the name with an empty file would let other programs read that file.)
    """
    if not overwrite and _rename_to_free_name(source, name, target, new):
        return
    if not overwrite:
        os.link(name, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        _take_old_name(source, name, target, new)
    elif _same(source, name, target, new):  # `rename` would keep both names
        os.unlink(name, dir_fd=source)
    else:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


def move_directory(source: int, name: str, target: int, new: str) -> None:
    """Move a directory; raises `FileExistsError` if the name exists.

    Where the system cannot do this in one step, an empty directory reserves the name. The move then replaces it
    atomically, which fails if it is no longer empty.
    """
    if _rename_to_free_name(source, name, target, new):
        return
    os.mkdir(new, dir_fd=target)
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    except BaseException:
        with suppress(OSError):
            os.rmdir(new, dir_fd=target)
        raise


@contextmanager
def set_aside(directory: int, name: str, *, durable: bool) -> Iterator[None]:
    """Put what has a name aside while the block gives the name to something else, then remove it.

    If the block raises, it gets its name back. If the process is killed in the block, `DirectoryTree.sweep` does that.
    """
    with box(directory, ASIDE) as inside:
        os.rename(name, name, src_dir_fd=directory, dst_dir_fd=inside)
        if durable:
            os.fsync(inside)
        try:
            yield
        except BaseException:
            os.rename(name, name, src_dir_fd=inside, dst_dir_fd=directory)
            raise
        if durable:
            os.fsync(directory)


def _rename_to_free_name(source: int, name: str, target: int, new: str) -> bool:
    """Rename unless the new name exists; return False where the system or the disk cannot do this."""
    if _RENAMEAT2 is None:
        return False
    if _RENAMEAT2(source, os.fsencode(name), target, os.fsencode(new), _NO_REPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number))


def _take_old_name(source: int, name: str, target: int, new: str) -> None:
    """Remove the old name of a file that has a new one. It is renamed first, as another file may have that name by now.

    If another program has taken the old name, the new name is removed and `FileNotFoundError` is raised: of two
    concurrent moves only one may succeed.
    """
    aside = temporary_name()
    try:
        os.rename(name, aside, src_dir_fd=source, dst_dir_fd=source)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=target)
        raise
    if not _same(source, aside, target, new):
        with suppress(FileExistsError):  # a third file has it, which is newer
            os.link(aside, name, src_dir_fd=source, dst_dir_fd=source, follow_symlinks=False)
    os.unlink(aside, dir_fd=source)


def _same(source: int, name: str, target: int, new: str) -> bool:
    """Return whether two names belong to the same file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(
            os.stat(name, dir_fd=source, follow_symlinks=False), os.stat(new, dir_fd=target, follow_symlinks=False)
        )
    return False
