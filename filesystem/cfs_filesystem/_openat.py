"""Files below one directory, reached by descriptors and never through a link (G6).

A path that is checked and then opened by its name can have changed in between. So nothing here opens a path: it opens
the first component below the descriptor of the root with `O_NOFOLLOW`, the second below that descriptor, and so on, as
`openat(2)` was made for. Wherever somebody swaps a directory for a link meanwhile, either the old directory has been
opened or the link is refused. Everything raises `OSError`; `ELOOP` is a link.
"""

import errno
import fcntl
import os
import secrets
import shutil
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

# Files that are written before they get their name, so that a name never stands for half a content (G6).

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


# Other names for files and directories, below descriptors; a name that is taken is not taken over by mistake (G6).
#
# `rename(2)` replaces what is there, and the call that does not is not to be had from Python. So a free name is first
# taken by something that fails if it is not free. Everything raises `OSError`.


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


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not block the opening
_DEEPEST = 4_096


class Tree:
    """A directory and everything below it. `parts` are the components of a path; they must be legal names.

    With `private` every directory that is made, the root too, is its owner's alone.
    """

    def __init__(self, root: str | os.PathLike[str] | int, *, private: bool = False) -> None:
        self.directory_mode = 0o700 if private else 0o777
        if not isinstance(root, int):
            Path(root).mkdir(mode=self.directory_mode, parents=True, exist_ok=True)
        self._root = open_beneath(root, ())
        self._closed = False
        self._finalize = weakref.finalize(self, os.close, self._root)

    def close(self) -> None:
        """Let go of the root; whatever is asked of it after that fails with `EBADF`."""
        self._closed = True  # the number of the descriptor may soon be some other file's
        self._finalize()

    def require_open(self) -> None:
        """Raise `EBADF` if this has been closed."""
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def stat(self, parts: Sequence[str]) -> os.stat_result:
        """Describe what has this name, be it a link."""
        directory = self._enter(parts)
        try:
            return os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        finally:
            self._leave(directory)

    def open(self, parts: Sequence[str]) -> int:
        """Open for reading whatever has this name and is no link; the caller closes it."""
        directory = self._enter(parts)
        try:
            return os.open(parts[-1], _FILE, dir_fd=directory)
        finally:
            self._leave(directory)

    @contextmanager
    def parent(self, parts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Open the directory that the last of the parts is in; yield its descriptor and that part."""
        directory = self._enter(parts)
        try:
            yield directory, parts[-1]
        finally:
            self._leave(directory)

    @contextmanager
    def made_parent(self, parts: Sequence[str], *, durable: bool = False) -> Iterator[tuple[int, str]]:
        """The same, and directories that are missing come to be, in one step, when the block ends.

        Until then they are apart, so nobody can remove them before the block has put something into them. If somebody
        else made them meanwhile, that is `ENOTEMPTY`; if a directory was removed before it could be held, `ENOENT`.
        Either means that the tree has changed: whoever tries again fails again only if it changes again.
        """
        with ExitStack() as stack:
            self.require_open()
            directory, missing = self._root, list(parts[:-1])
            while missing:
                try:
                    directory = _opened(stack, directory, missing[0])
                except FileNotFoundError:
                    break
                missing.pop(0)
            if missing:
                directory = stack.enter_context(_apart(directory, missing[0], self.directory_mode, durable=durable))
            for part in missing[1:]:
                os.mkdir(part, self.directory_mode, dir_fd=directory)
                if durable:
                    os.fsync(directory)
                directory = _opened(stack, directory, part)
            yield directory, parts[-1]

    @contextmanager
    def directory(self, parts: Sequence[str]) -> Iterator[int]:
        """Open a directory to look through; `ELOOP` if it is a link. Yield its descriptor."""
        descriptor = self._open_directory(list(parts), None, -1)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _enter(self, parts: Sequence[str]) -> int:
        """Open the directory that the last of the parts is in, one component at a time."""
        self.require_open()
        directory = self._root
        for part in parts[:-1]:
            try:
                below = _open_below(directory, part)
            finally:
                self._leave(directory)
            directory = below
        return directory

    def _leave(self, directory: int) -> None:
        if directory != self._root:
            os.close(directory)

    def walk(
        self, parts: Sequence[str], wanted: Callable[[Sequence[str]], bool]
    ) -> Iterator[tuple[list[str], int, "os.DirEntry[str]"]]:
        """Yield what is below a directory and no directory itself: its parts, the descriptor of the directory, and it.

        What is not wanted is neither yielded nor gone into. Two descriptors are open at most, however deep it goes.
        """
        waiting = [list(parts)]
        last: list[str] | None = None
        directory = -1
        try:
            while waiting:
                here = waiting.pop()
                with suppress(OSError):  # gone, or a link by now
                    opened = self._open_directory(here, last, directory)
                    if directory >= 0:
                        os.close(directory)
                    last, directory = here, opened
                    with os.scandir(directory) as entries:
                        for entry in entries:
                            names = [*here, entry.name]
                            if not wanted(names):
                                continue
                            if entry.is_dir(follow_symlinks=False):
                                waiting.append(names)
                            else:
                                yield names, directory, entry
        finally:
            if directory >= 0:
                os.close(directory)

    def _open_directory(self, parts: list[str], last: list[str] | None, directory: int) -> int:
        """Open a directory anew: from the one that was opened last if it is in that, or else from the root.

        Anew, also for the root: a reader of a directory has a position in it, which two must not share.
        """
        if last is not None and parts[:-1] == last:
            return _open_below(directory, parts[-1])
        with self.parent([*parts, "."]) as (above, name):
            return _open_below(above, name)

    def sweep(self) -> None:
        """Remove what writers that were killed had not finished.

        A living writer holds a lock on its file or directory, and the lock of a dead one is gone.
        """
        leftovers: list[Sequence[str]] = []

        def finished(names: Sequence[str]) -> bool:
            if names[-1].startswith(TEMPORARY):
                leftovers.append(names)
                return False
            return sum(map(len, names)) < _DEEPEST

        for _ in self.walk([], finished):
            pass
        for names in leftovers:
            with suppress(OSError), self.parent(names) as (directory, name):
                _remove_unlocked(directory, name)


def open_beneath(
    base: str | os.PathLike[str] | int, parts: Sequence[str], *, make: bool = False, mode: int = 0o777
) -> int:
    """Open a directory below one that is trusted, one component at a time; the caller closes it.

    `base` is a path or a descriptor, which stays open. With `make` directories that are missing are made, with `mode`.
    Raises `OSError`: `ELOOP` where a component is a link, `ENOTDIR` where it is anything else.
    """
    above = base if isinstance(base, int) else None
    directory = os.open("." if isinstance(base, int) else base, _DIRECTORY & ~os.O_NOFOLLOW, dir_fd=above)
    for part in parts:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, mode, dir_fd=directory)
            below = _open_below(directory, part)
        finally:
            os.close(directory)
        directory = below
    return directory


def read_all(descriptor: int, size: int) -> bytes:
    """Read a file to its end; `size` is a guess."""
    chunks = []
    while chunk := os.read(descriptor, size + 1):
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def holds_nothing(directory: int, name: str) -> bool:
    """Tell whether nothing but empty directories is below a directory."""
    below = _open_below(directory, name)
    try:
        with os.scandir(below) as entries:
            return all(entry.is_dir(follow_symlinks=False) and holds_nothing(below, entry.name) for entry in entries)
    finally:
        os.close(below)


def remove_leftovers(directory: int, name: str) -> None:
    """Remove from a directory what writers that were killed had not finished."""
    below = _open_below(directory, name)
    try:
        with os.scandir(below) as entries:
            for leftover in [entry.name for entry in entries if entry.name.startswith(TEMPORARY)]:
                with suppress(OSError):
                    _remove_unlocked(below, leftover)
    finally:
        os.close(below)


def remove_empty(directory: int, name: str) -> None:
    """Remove a directory if nothing but empty directories is below it; raises `OSError` if not."""
    below = _open_below(directory, name)
    try:
        with os.scandir(below) as entries:
            for entry in entries:
                remove_empty(below, entry.name)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=directory)


def _opened(stack: ExitStack, directory: int, name: str) -> int:
    """Open a directory in a directory until the stack is unwound."""
    below = _open_below(directory, name)
    stack.callback(os.close, below)
    return below


def _open_below(directory: int, name: str) -> int:
    """Open a directory in a directory; `ELOOP` if it is a link."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except NotADirectoryError:  # Linux says so of a link, too
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


@contextmanager
def _apart(directory: int, name: str, mode: int, *, durable: bool) -> Iterator[int]:
    """Make a directory that gets its name when the block ends; `ENOTEMPTY` if another one with entries has it."""
    temporary = TEMPORARY + secrets.token_hex(8)
    os.mkdir(temporary, mode, dir_fd=directory)
    try:
        made = _open_below(directory, temporary)
        try:
            with suppress(OSError):
                fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield made
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(made)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True, dir_fd=directory)
        raise
    if durable:
        os.fsync(directory)


def _remove_unlocked(directory: int, name: str) -> None:
    """Remove a file, or a directory with all that is below it; raises `OSError` if somebody has locked it."""
    descriptor = os.open(name, _FILE, dir_fd=directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(descriptor)
