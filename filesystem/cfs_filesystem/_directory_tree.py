"""A directory tree through descriptors: paths are opened, made and walked without following a link (G6)."""

import errno
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

from cfs_filesystem._descriptors import DIRECTORY, FILE, open_below, open_beneath
from cfs_filesystem._paths import MAX_DEPTH
from cfs_filesystem._removing import remove_tree, remove_unlocked
from cfs_filesystem._temporary import FOLDER_IDENTITY, TEMPORARY, lock_new, temporary_name


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
                    opened = open_below(directory, parts[-1]) if below else open_beneath(root, parts)
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


def holds_nothing(directory: int, name: str) -> bool:
    """Return whether a directory contains only empty directories, at most `MAX_DEPTH` deep."""
    below = open_below(directory, name)
    try:
        walk = Walk(below, lambda _: True)
        return next(iter(walk), None) is None and walk.complete
    finally:
        os.close(below)


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
            return os.open(parts[-1], FILE, dir_fd=directory)
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
                below = open_below(directory, part)
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
                parent = os.open("..", DIRECTORY, dir_fd=above)
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
                remove_unlocked(directory, name)


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
        directory = open_below(self._directory, parts[-1]) if below else open_beneath(self._root, parts)
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
        descriptor = os.open(directory.parent, DIRECTORY & ~os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _opened(stack: ExitStack, directory: int, name: str) -> int:
    """Open a subdirectory until the exit stack is closed."""
    below = open_below(directory, name)
    stack.callback(os.close, below)
    return below


@contextmanager
def _apart(directory: int, name: str, mode: int, *, durable: bool) -> Iterator[int]:
    """Create a directory that gets its name when the block ends; `ENOTEMPTY` if a non-empty one has that name."""
    temporary = temporary_name()
    os.mkdir(temporary, mode, dir_fd=directory)
    try:
        descriptor = open_below(directory, temporary)
        try:
            lock_new(descriptor)
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
