"""Files of the runtime that commands or a disk have damaged: put aside, and used as far as they are whole.

Nothing that is damaged is deleted: it is renamed to `NAME.aside-1`. What cannot even be renamed stays, and the runtime
uses `NAME~2` in its place. Every repair calls `warn` with one sentence.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias

from cfs_agents.base.disk import replace_file
from cfs_agents.base.folders import put_aside

Warn: TypeAlias = Callable[[str], None]
"""Gets one sentence for a person."""

_READ = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_REASONS: Mapping[int, str] = {
    errno.ELOOP: "is a link",
    errno.EISDIR: "is no file",
    errno.EACCES: "cannot be {}",
    errno.EPERM: "cannot be {}",
}
"""What can be in the place of a file, by the error of opening it."""


def usable_file(path: Path, warn: Warn, *, write: bool = True) -> Path:
    """Return the path by which a file of the runtime can be read and, with `write`, written; it may be missing.

    A link, a folder, and a file without these rights are put aside. A file that can be read is copied before. Raises
    `OSError` if the folder does not allow this.
    """
    path = _newest(path)
    try:
        _require_usable(path, write=write)
    except FileNotFoundError:
        pass
    except OSError as error:
        if (reason := _REASONS.get(error.errno or 0)) is None:
            raise
        return _moved(path, reason.format("written" if _content(path) is not None else "read"), warn)
    return path


def without_damage(path: Path, good: bytes | None, problem: str, warn: Warn, *, what: str = "damaged file") -> Path:
    """Put a damaged file aside, and write what is before the damage in its place; return its path.

    `problem` completes a sentence that begins with the name of the file. Without `good` nothing is written. `what`
    is the word for what is put aside. Raises `OSError`.
    """
    aside, free = _out_of_the_way(path)
    if good is not None:
        replace_file(free, good)
    note = "" if aside is None else f"; the {what} is kept as {aside.name}"
    warn(f"{path.name} in {path.parent} {problem}{note}")
    return free


def _moved(path: Path, reason: str, warn: Warn) -> Path:
    """Put aside what cannot be used, and continue with a copy of its content if it can be read."""
    content = _content(path)
    aside, free = _out_of_the_way(path)
    if content is not None:
        replace_file(free, content)
    use = "its content is not used" if content is None else "a copy of it is used"
    where = "it stays" if aside is None or aside == path else f"it is kept as {aside.name}"
    name = "" if free == path else f", and the runtime uses {free.name} from now on"
    warn(f"{path.name} in {path.parent} {reason}: {use}, and {where}{name}")
    return free


def _out_of_the_way(path: Path) -> tuple[Path | None, Path]:
    """Free the name of a file. Return where what was there is now, if it had any content, and the name to use."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None, path
    try:
        if stat.S_ISREG(status.st_mode) and status.st_size == 0:
            path.unlink()
            return None, path
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return path.with_name(put_aside(folder, path.name)), path
        finally:
            os.close(folder)
    except PermissionError:  # the file is immutable
        return path, next(candidate for candidate in _later_names(path) if not os.path.lexists(candidate))


def _newest(path: Path) -> Path:
    """Return the last of the names that replace one another."""
    for later in _later_names(path):
        if not os.path.lexists(later):
            return path
        path = later
    raise AssertionError  # pragma: no cover - the numbers have no end


def _later_names(path: Path) -> Iterator[Path]:
    stem, _, number = path.stem.partition("~")  # no name of an agent has this character
    for later in count(int(number or 1) + 1):
        yield path.with_name(f"{stem}~{later}{path.suffix}")


def _require_usable(path: Path, *, write: bool) -> None:
    """Raise `OSError` unless a path is a file with these rights."""
    if not stat.S_ISREG(path.lstat().st_mode) and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, "it is no file")
    os.close(os.open(path, _READ | (os.O_RDWR if write else os.O_RDONLY)))


def _content(path: Path) -> bytes | None:
    """Read a file that is none of others by a link; None if it cannot be read."""
    with suppress(OSError):
        file = os.open(path, _READ | os.O_RDONLY)
        with os.fdopen(file, "rb") as opened:
            return opened.read() if stat.S_ISREG(os.fstat(file).st_mode) else None
    return None
