"""Changes a small text file of one owner: atomically, one change after the other, readable by the owner only."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Signature = tuple[int, int, int]


def change(path: Path, edit: Callable[[str | None], str | None]) -> None:
    """Replace the text of a file by what `edit` returns for it. None is no file. Only its owner may read a new file.

    Concurrent changes wait for each other, so that none is lost. The folder must exist. Raises `OSError`.
    """
    path = path.resolve()  # a symbolic link stays
    with locked_folder(path.parent):
        text = edit(path.read_text(encoding="utf-8") if path.exists() else None)
        if text is None:
            path.unlink(missing_ok=True)
        else:
            _replace(path, text)


def signature(path: Path) -> Signature | None:
    """Return a value that differs after a change of the file; None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


@contextlib.contextmanager
def locked_folder(directory: Path) -> Iterator[None]:
    """Lock a directory; waits for others. A lock on the file would stay with the old file when it is replaced."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
