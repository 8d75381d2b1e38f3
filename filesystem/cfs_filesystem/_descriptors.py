"""Opens directories below a root through descriptors, never following a link (G6).

A path can change between its check and its opening. So paths are opened one component at a time with `openat(2)` and
`O_NOFOLLOW`, starting at the descriptor of the root. If a directory is replaced by a link meanwhile, either the old
directory has been opened or the link is refused. All functions raise `OSError`; `ELOOP` means a link.
"""

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not block the opening


def open_beneath(
    base: str | os.PathLike[str] | int, parts: Sequence[str], *, make: bool = False, mode: int = 0o777
) -> int:
    """Open a directory below a trusted one, one component at a time; the caller closes it.

    `base` is a path or a descriptor, which stays open. With `make` missing directories are created with `mode`. Raises
    `OSError`: `ELOOP` if a component is a link, `ENOTDIR` if it is not a directory.
    """
    above = base if isinstance(base, int) else None
    directory = os.open("." if isinstance(base, int) else base, DIRECTORY & ~os.O_NOFOLLOW, dir_fd=above)
    for part in parts:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, mode, dir_fd=directory)
            below = open_below(directory, part)
        finally:
            os.close(directory)
        directory = below
    return directory


def open_below(directory: int, name: str) -> int:
    """Open a subdirectory; `ELOOP` if it is a link."""
    try:
        return os.open(name, DIRECTORY, dir_fd=directory)
    except NotADirectoryError:  # Linux also reports this for a link
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def read_all(descriptor: int, size: int) -> bytes:
    """Read a file to its end; `size` is an estimate."""
    chunks = []
    while chunk := os.read(descriptor, size + 1):
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
