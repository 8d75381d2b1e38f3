"""Other names for files and directories, below descriptors; a name that is taken is not taken over by mistake (G6).

`rename(2)` replaces what is there, and the call that does not is not to be had from Python. So a free name is first
taken by something that fails if it is not free. Everything raises `OSError`.
"""

import os
import secrets
from contextlib import suppress

from cfs_filesystem._drafts import TEMPORARY


def move_file(source: int, name: str, target: int, new: str, *, overwrite: bool) -> None:
    """Give a file a name in another directory; `FileExistsError` when it is taken, unless `overwrite`.

    Without `overwrite` it has both names for an instant. (An empty file that holds the name would do as well, but
    whoever waits for the name to appear would read it.)
    """
    if not overwrite:
        os.link(name, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        _take_old_name(source, name, target, new)
    elif _same(source, name, target, new):  # `rename` would leave both
        os.unlink(name, dir_fd=source)
    else:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


def move_directory(source: int, name: str, target: int, new: str) -> None:
    """Give a directory a name in another directory; `FileExistsError` when that is taken.

    An empty directory takes the name, and is then replaced in one step: by a directory only, and only while empty.
    """
    os.mkdir(new, dir_fd=target)
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    except BaseException:
        with suppress(OSError):
            os.rmdir(new, dir_fd=target)
        raise


def _take_old_name(source: int, name: str, target: int, new: str) -> None:
    """Take the old name from a file that has a new one: it is put aside first, for another file may have it by now.

    `FileNotFoundError`, and the new name is gone, if somebody else took it: two who move a file must not both succeed,
    or it would keep both names.
    """
    aside = TEMPORARY + secrets.token_hex(8)
    try:
        os.rename(name, aside, src_dir_fd=source, dst_dir_fd=source)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=target)
        raise
    if not _same(source, aside, target, new):
        with suppress(FileExistsError):  # then a third has it, which is newer still
            os.link(aside, name, src_dir_fd=source, dst_dir_fd=source, follow_symlinks=False)
    os.unlink(aside, dir_fd=source)


def _same(source: int, name: str, target: int, new: str) -> bool:
    """Tell whether two names are those of one file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(
            os.stat(name, dir_fd=source, follow_symlinks=False), os.stat(new, dir_fd=target, follow_symlinks=False)
        )
    return False
