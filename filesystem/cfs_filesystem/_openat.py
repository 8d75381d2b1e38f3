"""Opens files below a root directory through descriptors, never following a link (G6).

A path can change between its check and its opening. So this module opens paths one component at a time with
`openat(2)` and `O_NOFOLLOW`, starting at the descriptor of the root. If a directory is replaced by a link meanwhile,
either the old directory has been opened or the link is refused. All functions raise `OSError`; `ELOOP` means a link.
"""

import ctypes
import errno
import fcntl
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Self

from cfs_filesystem._paths import MAX_DEPTH

# Atomic writes: a file gets its name when its content is complete (G6)

_UNNAMED: int | None = getattr(os, "O_TMPFILE", None) if Path("/proc/self/fd").is_dir() else None
_NOT_HERE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM}
"""Errors of `O_TMPFILE` where it is not supported; `EPERM` in a directory that has been removed."""
TEMPORARY = ".cfs-write-"
FOLDER_IDENTITY = f"{TEMPORARY}identity"
"""A file in a root that names the folder. It is hidden, as unfinished files are, and not removed."""
"""Prefix of the names of unfinished files."""
_ASIDE = f"{TEMPORARY}aside-"
"""Prefix of the names of directories that hold what a move is about to replace."""
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
        temporary = TEMPORARY + secrets.token_hex(8)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=directory)
    try:
        _lock_new(descriptor)
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
    """Link an unnamed file to a free name, as open(2) describes under O_TMPFILE."""
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)


# Moves that do not replace an existing name by mistake (G6)
#
# `rename(2)` replaces its target. So a free name is first taken by a call that fails if the name exists, or the system
# is asked to check this (`renameat2`, which Python does not offer). All functions raise `OSError`.


_RENAMEAT2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
_NO_REPLACE = 1


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
    with box(directory, _ASIDE) as inside:
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


def remove_at_once(directory: int, name: str) -> None:
    """Remove a directory with everything in it. The first step takes its name, so none of it is seen any more."""
    rubbish = TEMPORARY + secrets.token_hex(8)
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
    name = prefix + secrets.token_hex(8)
    os.mkdir(name, 0o700, dir_fd=directory)
    inside = _open_below(directory, name)
    try:
        _lock_new(inside)
        yield inside
    except BaseException:
        with suppress(OSError):
            if prefix == _ASIDE:
                os.rmdir(name, dir_fd=directory)
            else:
                remove_at_once(directory, name)
        raise
    else:
        with suppress(OSError):  # the next start removes it
            remove_at_once(directory, name)
    finally:
        os.close(inside)


def _take_old_name(source: int, name: str, target: int, new: str) -> None:
    """Remove the old name of a file that has a new one. It is renamed first, as another file may have that name by now.

    If another program has taken the old name, the new name is removed and `FileNotFoundError` is raised: of two
    concurrent moves only one may succeed.
    """
    aside = TEMPORARY + secrets.token_hex(8)
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


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not block the opening


class Walk:
    """Iterates over the files below a directory: their parts, the descriptor of their directory, and the entry there.

    `root` is a descriptor, which may be closed meanwhile, and `start` are the parts of the directory. Names that are
    not `wanted` are neither yielded nor entered, and only directories that it `enters` are. Links are not followed.
    Other file systems that are mounted below the root are not entered: writing or deleting there would change something
    else. With a `limit` at most so many names are looked at, sorted in each directory, so that the same ones are within
    it each time.

    After the iteration `complete` tells whether all directories were read: none was too deep, on another file system or
    unreadable, and the limit was not reached.

    Nothing recurses, and few descriptors are open at a time: commands can nest thousands of directories.
    """

    def __init__(
        self,
        root: int,
        wanted: Callable[[Sequence[str]], bool],
        *,
        enters: Callable[[Sequence[str]], bool] = lambda _: True,
        start: Sequence[str] = (),
        limit: int | None = None,
    ) -> None:
        self.complete = True
        self._root = root
        self._wanted = wanted
        self._enters = enters
        self._left = limit
        self._waiting = [list(start)]

    def __iter__(self) -> Iterator[tuple[list[str], int, "os.DirEntry[str]"]]:
        root = os.dup(self._root)  # its number may be reused when its owner closes it
        device = os.fstat(root).st_dev
        last: list[str] | None = None
        directory = -1
        try:
            while self._waiting:
                parts = self._waiting.pop()
                try:
                    # The root is opened again for each reader: they must not share one position.
                    below = last is not None and parts[:-1] == last and parts
                    opened = _open_below(directory, parts[-1]) if below else open_beneath(root, parts)
                except OSError:  # removed, replaced by a link, or not readable
                    self.complete = False
                    continue
                if directory >= 0:
                    os.close(directory)
                last, directory = parts, opened
                # Only of directories: files of an overlay file system have other device numbers (overlayfs, "Inode
                # properties" in the kernel's documentation).
                if os.fstat(directory).st_dev != device:
                    self.complete = False
                    continue
                yield from self._files_of(parts, directory)
        finally:
            os.close(root)
            if directory >= 0:
                os.close(directory)

    def _files_of(self, parts: list[str], directory: int) -> Iterator[tuple[list[str], int, "os.DirEntry[str]"]]:
        folders: list[list[str]] = []
        with os.scandir(directory) as entries:
            for entry in self._within_limit(entries):
                names = [*parts, entry.name]
                if not self._wanted(names):
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    yield names, directory, entry
                elif not self._enters(names):
                    continue
                elif len(names) < MAX_DEPTH:
                    folders.append(names)
                else:
                    self.complete = False
        self._waiting += reversed(folders)

    def _within_limit(self, entries: Iterator["os.DirEntry[str]"]) -> Iterable["os.DirEntry[str]"]:
        if self._left is None:
            return entries
        batch = list(islice(entries, self._left + 1))
        if len(batch) > self._left:
            self.complete = False
            batch.pop()
        self._left -= len(batch)
        return sorted(batch, key=lambda entry: entry.name)


class DirectoryTree:
    """A directory and everything below it. `parts` are the components of a path; they must be legal names.

    With `private` all created directories, including the root, are accessible to their owner only. With `durable` a
    root that had to be created is flushed to disk with its name.
    """

    def __init__(self, root: str | os.PathLike[str] | int, *, private: bool = False, durable: bool = False) -> None:
        self.directory_mode = 0o700 if private else 0o777
        if not isinstance(root, int):
            _make_root(Path(root), self.directory_mode, durable=durable)
        self._root = open_beneath(root, ())
        self._closed = False
        self._finalize = weakref.finalize(self, os.close, self._root)

    def close(self) -> None:
        """Close the root; later operations fail with `EBADF`."""
        self._closed = True  # the descriptor's number may be reused
        self._finalize()

    def require_open(self) -> None:
        """Raise `EBADF` if this has been closed."""
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def stat(self, parts: Sequence[str]) -> os.stat_result:
        """Return the status of the file of this name, without following links."""
        directory = self._enter(parts)
        try:
            return os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        finally:
            self._leave(directory)

    def open(self, parts: Sequence[str]) -> int:
        """Open a file for reading unless it is a link; the caller closes it."""
        directory = self._enter(parts)
        try:
            return os.open(parts[-1], _FILE, dir_fd=directory)
        finally:
            self._leave(directory)

    @contextmanager
    def parent(self, parts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Open the parent directory; yield its descriptor and the last part."""
        directory = self._enter(parts)
        try:
            yield directory, parts[-1]
        finally:
            self._leave(directory)

    @contextmanager
    def made_parent(self, parts: Sequence[str], *, durable: bool = False) -> Iterator[tuple[int, str]]:
        """The same, but create missing directories atomically when the block ends.

        Until then they have a temporary name, so that no other program removes them while they are empty. Raises
        `ENOTEMPTY` if another program created them meanwhile, and `ENOENT` if a parent was removed. In both cases the
        caller may retry.
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
        """Open a directory for listing and yield its descriptor; `ELOOP` if it is a link."""
        self.require_open()
        descriptor = open_beneath(self._root, parts)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _enter(self, parts: Sequence[str]) -> int:
        """Open the parent directory, one component at a time."""
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

    def contains(self, directory: int, name: str, other: int) -> bool:
        """Return whether the directory of this name is `other` or above it, by whatever names they were reached."""
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        above = os.dup(other)
        try:
            while not os.path.samestat(status_above := os.fstat(above), status):
                if os.path.samestat(status_above, os.fstat(self._root)):
                    return False
                parent = os.open("..", _DIRECTORY, dir_fd=above)
                os.close(above)
                above = parent
            return True
        finally:
            os.close(above)

    def walk(
        self,
        parts: Sequence[str],
        wanted: Callable[[Sequence[str]], bool],
        enters: Callable[[Sequence[str]], bool] = lambda _: True,
    ) -> Iterator[tuple[list[str], int, "os.DirEntry[str]"]]:
        """Yield all files below a directory; see `Walk`. A closed tree has none."""
        return iter(()) if self._closed else iter(Walk(self._root, wanted, enters=enters, start=parts))

    def descend(self, parts: Sequence[str]) -> Iterator[tuple[list[str], int, list["os.DirEntry[str]"]]]:
        """Yield a directory and all below it: the parts, the descriptor and the entries of each.

        Unlike `walk` it leaves nothing out: raises `OSError` for a directory that cannot be read.
        """
        waiting = [list(parts)]
        with self.visitor() as visitor:
            while waiting:
                current = waiting.pop()
                directory = visitor.enter(current)
                with os.scandir(directory) as entries:
                    names = list(entries)
                yield current, directory, names
                waiting += [[*current, entry.name] for entry in names if entry.is_dir(follow_symlinks=False)]

    @contextmanager
    def visitor(self) -> Iterator["Visitor"]:
        """Yield what opens directories one after the other, and close the last one in the end."""
        visitor = Visitor(self._root, self.require_open)
        try:
            yield visitor
        finally:
            visitor.leave()

    def sweep(self) -> None:
        """Remove unfinished files of killed writers.

        A running writer holds a lock on its file or directory; the lock ends with the process.
        """
        leftovers: list[Sequence[str]] = []

        def finished(names: Sequence[str]) -> bool:
            if names[-1].startswith(TEMPORARY):
                if list(names) != [FOLDER_IDENTITY]:
                    leftovers.append(names)
                return False
            return True

        for _ in self.walk([], finished):
            pass
        for names in leftovers:
            with suppress(OSError), self.parent(names) as (directory, name):
                _remove_unlocked(directory, name)


class Visitor:
    """Opens directories one after the other. One that is in the last one takes one step, however deep it is."""

    def __init__(self, root: int, require_open: Callable[[], None]) -> None:
        self._root = root
        self._require_open = require_open
        self._parts: list[str] | None = None
        self._directory = -1

    def enter(self, parts: Sequence[str]) -> int:
        """Open a directory and close the last one, unless this raises `OSError` (`ELOOP` for a link)."""
        self._require_open()
        below = self._parts is not None and len(parts) > 0 and list(parts[:-1]) == self._parts
        directory = _open_below(self._directory, parts[-1]) if below else open_beneath(self._root, parts)
        self.leave()
        self._parts, self._directory = list(parts), directory
        return directory

    def leave(self) -> None:
        """Close the last directory."""
        if self._directory >= 0:
            os.close(self._directory)
        self._parts, self._directory = None, -1


def _make_root(root: Path, mode: int, *, durable: bool) -> None:
    missing = [directory for directory in (root, *root.parents) if durable and not directory.exists()]
    root.mkdir(mode=mode, parents=True, exist_ok=True)
    for directory in missing:
        descriptor = os.open(directory.parent, _DIRECTORY & ~os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_beneath(
    base: str | os.PathLike[str] | int, parts: Sequence[str], *, make: bool = False, mode: int = 0o777
) -> int:
    """Open a directory below a trusted one, one component at a time; the caller closes it.

    `base` is a path or a descriptor, which stays open. With `make` missing directories are created with `mode`. Raises
    `OSError`: `ELOOP` if a component is a link, `ENOTDIR` if it is not a directory.
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
    """Read a file to its end; `size` is an estimate."""
    chunks = []
    while chunk := os.read(descriptor, size + 1):
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def holds_nothing(directory: int, name: str) -> bool:
    """Return whether a directory contains only empty directories, at most `MAX_DEPTH` deep."""
    below = _open_below(directory, name)
    try:
        walk = Walk(below, lambda _: True)
        return next(iter(walk), None) is None and walk.complete
    finally:
        os.close(below)


def remove_leftovers(directory: int, name: str) -> None:
    """Remove unfinished files of killed writers from one directory."""
    below = _open_below(directory, name)
    try:
        with os.scandir(below) as entries:
            for leftover in [entry.name for entry in entries if entry.name.startswith(TEMPORARY)]:
                with suppress(OSError):
                    _remove_unlocked(below, leftover)
    finally:
        os.close(below)


def remove_empty(directory: int, name: str, depth: int = MAX_DEPTH) -> None:
    """Remove a directory that contains only empty directories; raises `OSError` if it contains anything else."""
    if not depth:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    below = _open_below(directory, name)
    try:
        with os.scandir(below) as entries:
            for entry in entries:
                remove_empty(below, entry.name, depth - 1)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=directory)


def remove_tree(directory: int, name: str) -> None:
    """Remove a directory with all that is below it on its file system, however deep; raises `OSError`.

    `shutil.rmtree` recurses and ends at about 1,000 levels. Here each directory is moved up into the top one before it
    is emptied.
    """
    top = _open_below(directory, name)
    try:
        waiting = _subdirectories_after_removing_files(top)
        numbers = count()
        while waiting:
            folder = waiting.pop()
            below = _open_below(top, folder)
            try:
                if os.fstat(below).st_dev != os.fstat(top).st_dev:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                for inner in _subdirectories_after_removing_files(below):
                    lifted = f"{TEMPORARY}{secrets.token_hex(8)}-{next(numbers)}"
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


def _opened(stack: ExitStack, directory: int, name: str) -> int:
    """Open a subdirectory until the exit stack is closed."""
    below = _open_below(directory, name)
    stack.callback(os.close, below)
    return below


def _open_below(directory: int, name: str) -> int:
    """Open a subdirectory; `ELOOP` if it is a link."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except NotADirectoryError:  # Linux also reports this for a link
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


@contextmanager
def _apart(directory: int, name: str, mode: int, *, durable: bool) -> Iterator[int]:
    """Create a directory that gets its name when the block ends; `ENOTEMPTY` if a non-empty one has that name."""
    temporary = TEMPORARY + secrets.token_hex(8)
    os.mkdir(temporary, mode, dir_fd=directory)
    try:
        descriptor = _open_below(directory, temporary)
        try:
            _lock_new(descriptor)
            yield descriptor
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(descriptor)
    except BaseException:
        with suppress(OSError):
            remove_tree(directory, temporary)
        raise
    if durable:
        os.fsync(directory)


def _lock_new(descriptor: int) -> None:
    """Lock what this process has just created, so that no other one takes it for left over."""
    with suppress(OSError):  # no locks here: no other process may open the root meanwhile
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_unlocked(directory: int, name: str) -> None:
    """Remove an unfinished file or directory; raises `OSError` if another process has locked it.

    What a killed move had put aside gets its name back, unless the move had replaced it.
    """
    descriptor = os.open(name, _FILE, dir_fd=directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if name.startswith(_ASIDE):
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
