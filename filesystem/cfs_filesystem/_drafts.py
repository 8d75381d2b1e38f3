"""Files that are written before they get their name, so that a name never stands for half a content (G6)."""

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

_UNNAMED: int | None = getattr(os, "O_TMPFILE", None) if Path("/proc/self/fd").is_dir() else None
_NOT_HERE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM}
"""How `O_TMPFILE` says that it is not supported here; `EPERM` in a directory that has been removed."""
TEMPORARY = ".cfs-write-"
"""How the names of unfinished files begin."""
_CHUNK = 1 << 20


class SourceFailed(Exception):
    """What was to be written could not be had: `error` is the word of whoever supplies it, not of the disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Content:
    """Chunks that are to become a file. They come once: for a second try they are read from the file of the first."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._first: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._first is not None:
            os.close(self._first)

    def pour(self, descriptor: int) -> None:
        """Write everything into a new file; raises `SourceFailed` when the chunks end in an `OSError`."""
        if self._first is None:
            for chunk in self._supplied():
                _write_all(descriptor, chunk)
            self._first = os.dup(descriptor)  # what it holds stays readable, whatever becomes of its name
        else:
            offset = 0
            while chunk := os.pread(self._first, _CHUNK, offset):
                _write_all(descriptor, chunk)
                offset += len(chunk)

    def _supplied(self) -> Iterator[bytes]:
        """Tell a failure of the source from one of the disk: the one must not be answered by a second try."""
        try:
            for chunk in self._chunks:  # noqa: UP028  `yield from` would close a file that is the caller's
                yield chunk
        except OSError as error:
            raise SourceFailed(error) from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace(
    directory: int, name: str, content: Content, *, mode: Callable[[], int | None], overwrite: bool, durable: bool
) -> os.stat_result:
    """Give a name to a new file that holds the content, in one step; return what is known of the file.

    The name never stands for a file that is half written, or for nothing if it stood for something. `mode` is asked
    when all is written, and says the permissions (or None: the umask does); `durable` waits until the disk has it.
    Without `overwrite` an existing name raises `FileExistsError`.
    """
    with _unfinished(directory) as (descriptor, temporary):
        content.pour(descriptor)
        if (permissions := mode()) is not None:
            os.fchmod(descriptor, permissions)
        if durable:
            os.fsync(descriptor)
        _publish(directory, descriptor, temporary, name, overwrite=overwrite)
        if durable:
            os.fsync(directory)
        return os.fstat(descriptor)


@contextmanager
def _unfinished(directory: int) -> Iterator[tuple[int, str | None]]:
    """Open a new file for writing: one without a name where the system can (a kill leaves nothing), else a named one.

    The lock tells `sweep` that the writer lives.
    """
    temporary = None
    descriptor = _open_unnamed(directory)
    if descriptor is None:
        temporary = TEMPORARY + secrets.token_hex(8)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=directory)
    try:
        with suppress(OSError):  # a file system without locks: then nobody else may open the root meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor, temporary
    except BaseException:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(descriptor)


def _publish(directory: int, descriptor: int, temporary: str | None, name: str, *, overwrite: bool) -> None:
    """Give a finished file its name. Only a name can replace a name, so one without gets a temporary one first."""
    if temporary is None and not overwrite:
        _name(directory, descriptor, name)
        return
    if temporary is None:
        temporary = TEMPORARY + secrets.token_hex(8)
        _name(directory, descriptor, temporary)
    try:
        if overwrite:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            os.unlink(temporary, dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _open_unnamed(directory: int) -> int | None:
    if _UNNAMED is None:
        return None
    try:
        return os.open(".", _UNNAMED | os.O_RDWR | os.O_CLOEXEC, 0o666, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return None
        raise


def _name(directory: int, descriptor: int, name: str) -> None:
    """Give a file without a name one that is free; open(2) describes this way under O_TMPFILE."""
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
