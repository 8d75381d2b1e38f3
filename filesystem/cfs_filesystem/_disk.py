"""A directory of the disk as a logical file system (G6).

Regular files with one name, reached without a link, are entries. Everything else (links, pipes, devices, names that are
not legal paths) is neither listed nor read nor overwritten. docs/filesystem.md describes the guarantees.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from typing import BinaryIO, TypeAlias

from cfs_filesystem._base import FileSystemBase, LiveIndex, chunks_of
from cfs_filesystem._descriptors import read_all
from cfs_filesystem._directory_tree import DirectoryTree, holds_nothing
from cfs_filesystem._errors import (
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    InvalidPathError,
    NotFoundError,
    retry_while_directories_change,
    translate_os_errors,
)
from cfs_filesystem._flushing import FolderFlushes
from cfs_filesystem._moving import move_directory, move_file, set_aside
from cfs_filesystem._paths import covers, validate_path
from cfs_filesystem._removing import box, remove_at_once, remove_empty, remove_leftovers
from cfs_filesystem._replacing import FileChunks, SourceFailed, replace
from cfs_filesystem._temporary import TEMPORARY
from cfs_filesystem._types import DirectoryMeta, EntryMeta, Grant, Path, VersionedEntryMeta, time_of

_PATIENCE = 10
_EFFECTIVE = os.access in os.supports_effective_ids


Entered: TypeAlias = Callable[[], Callable[[Sequence[str]], bool]]
"""Returns, when a listing begins, what says of the parts of a directory whether the listing enters it."""


def _all() -> Callable[[Sequence[str]], bool]:
    return lambda _: True


class DiskEntries:
    """Reads the entries and directories below a root. It changes nothing."""

    def __init__(
        self,
        root: str | os.PathLike[str] | int,
        prefix: Path,
        *,
        hard_links: bool,
        private: bool,
        durable: bool,
        entered: Entered,
    ) -> None:
        self._prefix = prefix
        self._hard_links = hard_links
        self._entered = entered
        self._tree = DirectoryTree(root, private=private, durable=durable)

    @property
    def tree(self) -> DirectoryTree:
        """The directory itself."""
        return self._tree

    def look(self, path: Path) -> EntryMeta:
        """Return the metadata of an entry; raises `NotFoundError`, and `InvalidPathError` for links."""
        parts = self._parts(path)
        with translate_os_errors(path, NotFoundError):
            status = self._patiently(lambda: self._tree.stat(parts))
        self._require_file(path, status)
        return meta_of(path, status)

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Yield the entries that a prefix covers, in any order."""
        if prefix != self._prefix and covers(self._prefix, prefix):
            if not prefix.endswith("/"):
                with suppress(FileSystemError):
                    yield prefix, self.look(prefix)
            start = prefix.removeprefix(self._prefix).removesuffix("/")
            yield from self._walk(start.split("/"))
        elif covers(prefix, self._prefix):
            yield from self._walk([])

    def _walk(self, start: Sequence[str]) -> Iterator[tuple[Path, EntryMeta]]:
        for parts, _, entry in self._tree.walk(start, self._is_legal, self._entered()):
            try:
                status = entry.stat(follow_symlinks=False)
                path = self._prefix + "/".join(parts)
                self._require_file(path, status)
            except (OSError, FileSystemError):
                continue
            yield path, meta_of(path, status)

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        parts = self._parts(inside)[:-1]
        metas: list[EntryMeta] = []
        with (
            translate_os_errors(inside.rstrip("/"), NotFoundError),
            self._tree.directory(parts) as directory,
            os.scandir(directory) as entries,
        ):
            for entry in entries:
                if self._is_legal([*parts, entry.name]):
                    with suppress(OSError, FileSystemError):  # removed meanwhile, or not an entry
                        metas.append(self._described(inside + entry.name, entry.stat(follow_symlinks=False)))
        return metas

    def _described(self, path: Path, status: os.stat_result) -> EntryMeta:
        if stat.S_ISDIR(status.st_mode):
            return directory_meta_of(path, status)
        self._require_file(path, status)
        return meta_of(path, status)

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        path = inside.rstrip("/")
        parts = self._parts(inside)[:-1]
        try:
            with translate_os_errors(path, NotFoundError):
                status = self._tree.stat(parts or ["."])
        except NotFoundError:
            return None
        if stat.S_ISLNK(status.st_mode):
            raise InvalidPathError(f"{path!r} is a symbolic link", path)
        return directory_meta_of(path or "/", status) if stat.S_ISDIR(status.st_mode) else None

    def _parts(self, path: Path) -> list[str]:
        """Split a valid path into components; raise `InvalidPathError` for reserved names."""
        parts = path[len(self._prefix) :].split("/")
        if TEMPORARY in path and any(part.startswith(TEMPORARY) for part in parts):
            raise InvalidPathError(f"{path!r} is no path: {TEMPORARY!r} begins the names of unfinished files", path)
        return parts

    def _is_legal(self, parts: Sequence[str]) -> bool:
        try:
            self._parts(validate_path(self._prefix + "/".join(parts)))
        except InvalidPathError:
            return False
        return True

    def _require_file(self, path: Path, status: os.stat_result) -> None:
        """Raise unless this is a regular file with a single name."""
        if stat.S_ISLNK(status.st_mode):
            raise InvalidPathError(f"{path!r} is a symbolic link", path)
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(f"there is no entry {path!r}", path)
        if status.st_nlink > 1 and not self._hard_links:
            raise InvalidPathError(f"{path!r} is a hard link: the same file has another name", path)

    def _patiently(self, look: Callable[[], os.stat_result]) -> os.stat_result:
        """Return the status of a file; repeat while it has several names, as a writer may be about to remove one.

        Without `O_TMPFILE`, a write that must not overwrite links its file to the name and then unlinks the temporary
        name. A move that must not overwrite always does so.
        """
        for _ in range(_PATIENCE):
            status = look()
            if status.st_nlink == 1 or self._hard_links or not stat.S_ISREG(status.st_mode):
                break
            time.sleep(0.001)
        return status


def meta_of(path: Path, status: os.stat_result) -> EntryMeta:
    """Return the metadata of a file."""
    return VersionedEntryMeta(
        path=path, size=status.st_size, updated_at=time_of(status.st_mtime), version=stamp_of(status)
    )


def stamp_of(status: os.stat_result) -> str:
    """Return what differs after every change of a file. It is not mtime, which programs can set back."""
    return f"{status.st_ino:x}-{status.st_ctime_ns:x}-{status.st_size:x}"


def directory_meta_of(path: Path, status: os.stat_result) -> DirectoryMeta:
    """Return the metadata of a directory."""
    return DirectoryMeta(path=path, size=0, updated_at=time_of(status.st_mtime), directory=True)


class DiskFileSystem(DiskEntries, FileSystemBase):
    """The files below a directory: a path, which is created if it does not exist, or a descriptor, which stays open.

    `prefix` is the logical path of that directory. With `durable` a change returns only after it is flushed to disk.
    With `hard_links` files with several names are entries; otherwise they are refused, as another name may be outside
    the root. With `private` new files and directories are accessible to their owner only (0600 and 0700). A listing of
    all entries leaves out what is below directories that are not `entered`, unless it begins there.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | int,
        *,
        prefix: Path = "/",
        durable: bool = False,
        hard_links: bool = False,
        private: bool = False,
        entered: Entered = _all,
    ) -> None:
        FileSystemBase.__init__(self, [prefix])
        DiskEntries.__init__(
            self, root, prefix, hard_links=hard_links, private=private, durable=durable, entered=entered
        )
        self._durable = self.durable = durable
        self._new_file = 0o600 if private else None
        self._flushes = FolderFlushes()
        self._tree.sweep()

    def close(self) -> None:
        """Close the directory. This also happens when the object is garbage-collected."""
        self._flushes.close()
        self._tree.close()

    def flushing_beside(self) -> AbstractContextManager[None]:
        """In a block of one thread, flush the folders of files that it writes while the block goes on.

        When the block ends, all is flushed. Raises `OSError` then. Blocks cannot be nested.
        """
        return self._flushes.beside()

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        self._tree.require_open()
        return LiveIndex(self)

    def _read_binary_impl(self, path: Path) -> bytes:
        with translate_os_errors(path, NotFoundError):
            descriptor, status = self._open_file(path)
            try:
                return read_all(descriptor, status.st_size)
            finally:
                os.close(descriptor)

    def _open_impl(self, path: Path) -> BinaryIO:
        with translate_os_errors(path, NotFoundError):
            return os.fdopen(self._open_file(path)[0], "rb")

    def _open_file(self, path: Path) -> tuple[int, os.stat_result]:
        descriptor = self._tree.open(self._parts(path))
        try:
            status = self._patiently(lambda: os.fstat(descriptor))
            self._require_file(path, status)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, status

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        return self._store(path, [data], overwrite=overwrite)

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        return self._store(path, source, overwrite=overwrite)

    def _store(self, path: Path, chunks: Iterable[bytes], *, overwrite: bool) -> EntryMeta:
        parts, durable = self._parts(path), self._durable
        with FileChunks(chunks) as content:

            def write() -> EntryMeta:
                with self._tree.made_parent(parts, durable=durable) as (directory, name):
                    self._replaceable(path, directory, name)  # before the source is read
                    mode, flush = partial(self._make_room, path, directory, name), self._flushes.flush
                    how = {"overwrite": overwrite, "durable": durable}
                    return meta_of(path, replace(directory, name, content, mode=mode, flush=flush, **how))

            try:
                return retry_while_directories_change(path, write)
            except SourceFailed as failed:
                error = failed.error
            raise error

    def _delete_impl(self, path: Path) -> None:
        gone = ConflictError(f"{path!r} was deleted by another caller", path)
        with translate_os_errors(path, ConflictError):
            try:
                with self._tree.parent(self._parts(path)) as (directory, name):
                    status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
                    self._require_file(path, status)
                    os.unlink(name, dir_fd=directory)
                    self._settle(directory)
            except (NotFoundError, FileNotFoundError):
                raise gone from None

    def _replaceable(self, path: Path, directory: int, name: str) -> os.stat_result | None:
        """Return the file or empty directory that a write would replace, or None; raise if it may not be replaced."""
        try:
            status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
            if stat.S_ISDIR(status.st_mode):
                _require_bare(path, directory, name)
            else:
                self._require_file(path, status)
        except FileNotFoundError:
            return None
        except NotFoundError:
            raise ConflictError(f"{path!r} is not a regular file", path) from None
        return status

    def _make_room(self, path: Path, directory: int, name: str) -> int | None:
        """Remove an empty directory at the target, or return the permissions of the file there."""
        status = self._replaceable(path, directory, name)
        if status is None:
            return self._new_file
        if stat.S_ISDIR(status.st_mode):
            remove_empty(directory, name)  # it is no longer empty: look again
            return self._new_file
        return stat.S_IMODE(status.st_mode) & 0o777

    def _make_directory_impl(self, path: Path) -> None:
        # the handle has checked that the parent exists, except for the root of a mount
        parts = self._parts(path)

        def make() -> None:
            with self._tree.made_parent(parts, durable=self._durable) as (directory, name):
                os.mkdir(name, self._tree.directory_mode, dir_fd=directory)
                self._settle(directory)

        retry_while_directories_change(path, make)

    def _remove_directory_impl(self, path: Path) -> None:
        with translate_os_errors(path, ConflictError):
            try:
                with self._tree.parent(self._parts(path)) as (directory, name):
                    try:
                        os.rmdir(name, dir_fd=directory)
                    except OSError as error:
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                            raise
                        remove_leftovers(directory, name)
                        os.rmdir(name, dir_fd=directory)
                    self._settle(directory)
            except FileExistsError:
                raise ConflictError(f"{path!r} is not empty", path) from None
            except (FileNotFoundError, NotADirectoryError):
                raise ConflictError(f"the directory {path!r} was removed by another caller", path) from None

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        with (
            translate_os_errors(path, ConflictError),
            self._tree.parent(self._parts(path)) as (source, name),
            translate_os_errors(target, ConflictError),
            self._tree.parent(self._parts(target)) as (destination, new),
        ):
            with translate_os_errors(path, ConflictError):
                status = self._patiently(lambda: os.stat(name, dir_fd=source, follow_symlinks=False))
            if stat.S_ISDIR(status.st_mode):
                move_directory(source, name, destination, new)
            else:
                self._require_mine(path, status)
                self._require_no_directory(target, destination, new)
                move_file(source, name, destination, new, overwrite=overwrite)
            self._settle(destination)
            self._settle(source)

    def _move_over_impl(self, path: Path, target: Path) -> None:
        with self._both_parents(path, target) as (source, name, destination, new):
            status = self._patiently(lambda: os.stat(name, dir_fd=source, follow_symlinks=False))
            if not stat.S_ISDIR(status.st_mode):
                self._require_mine(path, status)
            with self._replacing(target, destination, new, source):
                os.rename(name, new, src_dir_fd=source, dst_dir_fd=destination)
                self._settle(source)

    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:
        if self._directory_impl(path + "/") is None and self._directory_impl(target + "/") is None:
            with self._open_impl(path) as content:
                self._store(target, chunks_of(content), overwrite=overwrite)
            return
        with self._both_parents(path, target) as (source, _, destination, new), box(destination) as inside:
            with closing(DiskFileSystem(inside, private=self._new_file is not None, durable=self._durable)) as copy:
                self._copy_into(copy, path, target, members=members)
            if overwrite:
                with self._replacing(target, destination, new, source):
                    os.rename(new, new, src_dir_fd=inside, dst_dir_fd=destination)
            else:
                move_directory(inside, new, destination, new)
                self._settle(destination)

    def _copy_into(self, copy: "DiskFileSystem", path: Path, target: Path, *, members: bool) -> None:
        """Copy what is shown of an entry or a directory into a file system that is not visible yet."""
        waiting, above = [path], target.rindex("/")
        while waiting:
            source_path = waiting.pop()
            target_path = validate_path(target + source_path.removeprefix(path))[above:]  # it may be too long
            if self._directory_impl(source_path + "/") is None:
                with self._open_impl(source_path) as content:
                    copy._store(target_path, chunks_of(content), overwrite=False)  # noqa: SLF001 - one of these, too
            else:
                copy._make_directory_impl(target_path)  # noqa: SLF001 - one of these, too
                waiting += [meta["path"] for meta in self._scan_impl(source_path + "/")] if members else []

    def _remove_tree_impl(self, path: Path) -> None:
        with (
            translate_os_errors(path, ConflictError),
            self._tree.parent(self._parts(path)) as (directory, name),
        ):
            self._require_removable(path, directory, name)
            remove_at_once(directory, name)
            self._settle(directory)

    @contextmanager
    def _both_parents(self, path: Path, target: Path) -> Iterator[tuple[int, str, int, str]]:
        """Open the parents of two paths; yield each with the last part of its path."""
        with (
            translate_os_errors(path, ConflictError),
            self._tree.parent(self._parts(path)) as (source, name),
            self._tree.parent(self._parts(target)) as (destination, new),
        ):
            yield source, name, destination, new

    @contextmanager
    def _replacing(self, target: Path, directory: int, name: str, source: int) -> Iterator[None]:
        """Put what is at the target aside while the block replaces it. `source` is where the new one comes from."""
        with translate_os_errors(target, ConflictError):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                yield
                self._settle(directory)
                return
            if stat.S_ISDIR(status.st_mode):
                self._require_removable(target, directory, name)
                if self._tree.contains(directory, name, source):  # the disk folds case, for example
                    raise ConflictError(f"{target!r} contains what would replace it", target)
            else:
                self._require_mine(target, status)
            with set_aside(directory, name, durable=self._durable):
                yield

    def _require_removable(self, path: Path, directory: int, name: str) -> None:
        """Raise unless everything in a directory is shown, and this process may remove it."""
        device = os.stat(name, dir_fd=directory, follow_symlinks=False).st_dev
        for parts, descriptor, entries in self._tree.descend(self._parts(path)):
            where = self._prefix + "/".join(parts)
            if os.fstat(descriptor).st_dev != device:
                raise ConflictError(f"{where!r} is a mount point", where)
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=_EFFECTIVE):
                raise AccessDeniedError(f"the operating system denies access to {where!r}", where)
            for entry in entries:
                if entry.name.startswith(TEMPORARY):
                    continue
                if not (self._is_legal([*parts, entry.name]) and self._is_shown(entry)):
                    raise ConflictError(f"{where!r} has something in it that is not shown, so it stays", where)

    def _is_shown(self, entry: "os.DirEntry[str]") -> bool:
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(status.st_mode) or (
            stat.S_ISREG(status.st_mode) and (status.st_nlink == 1 or self._hard_links)
        )

    def _require_mine(self, path: Path, status: os.stat_result) -> None:
        try:
            self._require_file(path, status)
        except NotFoundError:
            raise ConflictError(f"{path!r} is not a regular file", path) from None

    def _require_no_directory(self, path: Path, directory: int, name: str) -> None:
        """Raise unless the target is a file or does not exist."""
        with suppress(FileNotFoundError):
            status = self._patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))
            if stat.S_ISDIR(status.st_mode):
                raise ConflictError(f"{path!r} is a directory", path)
            self._require_mine(path, status)

    def _settle(self, directory: int) -> None:
        if self._durable:
            os.fsync(directory)


def _require_bare(path: Path, directory: int, name: str) -> None:
    """Raise unless a directory contains only empty directories, which a file may replace."""
    if not holds_nothing(directory, name):
        raise ConflictError(f"{path!r} is a directory: there are entries below it", path)
