"""Writes files atomically: a file gets its name when its content is complete (G6)."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from cfs_filesystem._temporary import lock_new, temporary_name

_UNNAMED: int | None = getattr(os, "O_TMPFILE", None) if Path("/proc/self/fd").is_dir() else None
_NOT_HERE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM}
"""Errors of `O_TMPFILE` where it is not supported; `EPERM` in a directory that has been removed."""
_CHUNK = 1 << 20


class SourceFailed(Exception):
    """The source of the content raised `error`; this is not a failure of the disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class FileChunks:
    """The chunks of a file. The source is read once; a retry reads them back from the first file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._first: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._first is not None:
            os.close(self._first)

    def pour(self, descriptor: int) -> None:
        """Write all chunks into a new file; raises `SourceFailed` if the source raises an `OSError`."""
        if self._first is None:
            for chunk in self._supplied():
                _write_all(descriptor, chunk)
            self._first = os.dup(descriptor)  # the content stays readable after the name is gone
        else:
            offset = 0
            while chunk := os.pread(self._first, _CHUNK, offset):
                _write_all(descriptor, chunk)
                offset += len(chunk)

    def _supplied(self) -> Iterator[bytes]:
        """Raise a failure of the source as `SourceFailed`, so that it is not retried."""
        try:
            for chunk in self._chunks:  # noqa: UP028  `yield from` would close the caller's file
                yield chunk
        except OSError as error:
            raise SourceFailed(error) from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace(
    directory: int,
    name: str,
    content: FileChunks,
    *,
    mode: Callable[[], int | None],
    overwrite: bool,
    durable: bool,
    flush: Callable[[int], None] = os.fsync,
) -> os.stat_result:
    """Write a file atomically and return its status.

    Other programs see the old or the new content, never a partial one. `mode` is called after the content is written
    and returns the permissions (None: those of the umask). `durable` flushes to disk, the folder by `flush`. Without
    `overwrite` an existing name raises `FileExistsError`.
    """
    with _unfinished(directory) as (descriptor, temporary):
        content.pour(descriptor)
        if (permissions := mode()) is not None:
            os.fchmod(descriptor, permissions)
        if durable:
            os.fsync(descriptor)
        _publish(directory, descriptor, temporary, name, overwrite=overwrite)
        if durable:
            flush(directory)
        return os.fstat(descriptor)


@contextmanager
def _unfinished(directory: int) -> Iterator[tuple[int, str | None]]:
    """Open a new file for writing, unnamed where the system supports it: then a killed writer leaves nothing behind.

    The lock shows `remove_leftovers` that the writer is alive.
    """
    temporary = None
    descriptor = _open_unnamed(directory)
    if descriptor is None:
        temporary = temporary_name()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=directory)
    try:
        lock_new(descriptor)
        yield descriptor, temporary
    except BaseException:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(descriptor)


def _publish(directory: int, descriptor: int, temporary: str | None, name: str, *, overwrite: bool) -> None:
    """Give a finished file its name. An unnamed file first gets a temporary one, as only `rename` replaces."""
    if temporary is None and not overwrite:
        _name(directory, descriptor, name)
        return
    if temporary is None:
        temporary = temporary_name()
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
    """Link an unnamed file to a free name, as open(2) describes under O_TMPFILE."""
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
