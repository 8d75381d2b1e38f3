"""What is below a directory of the disk, seen as entries and directories (G6).

What is a regular file with one name, and reached without a link, is an entry; its path is its place below the root.
Everything else (links, pipes, devices, names that are no legal path) is not there.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from cfs_filesystem._drafts import TEMPORARY
from cfs_filesystem._errors import FileSystemError, InvalidPathError, NotFoundError
from cfs_filesystem._openat import Tree
from cfs_filesystem._os_errors import in_logical_words
from cfs_filesystem._paths import covers, validate_path
from cfs_filesystem._types import DirectoryMeta, EntryMeta, Path, VersionedEntryMeta

_PATIENCE = 10


class DiskEntries:
    """Looks at what is below a root; changes nothing."""

    def __init__(self, root: str | os.PathLike[str] | int, prefix: Path, *, hard_links: bool, private: bool) -> None:
        self._prefix = prefix
        self._hard_links = hard_links
        self._tree = Tree(root, private=private)

    def look(self, path: Path) -> EntryMeta:
        """Describe an entry; raises `NotFoundError`, and `InvalidPathError` for links."""
        parts = self._parts(path)
        with in_logical_words(path, NotFoundError):
            status = self._patiently(lambda: self._tree.stat(parts))
        self._require_file(path, status)
        return meta_of(path, status)

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Go through the entries that a prefix covers, in any order."""
        if prefix != self._prefix and covers(self._prefix, prefix):
            if not prefix.endswith("/"):
                with suppress(FileSystemError):
                    yield prefix, self.look(prefix)
            start = prefix.removeprefix(self._prefix).removesuffix("/")
            yield from self._walk(start.split("/"))
        elif covers(prefix, self._prefix):
            yield from self._walk([])

    def _walk(self, start: Sequence[str]) -> Iterator[tuple[Path, EntryMeta]]:
        for parts, _, entry in self._tree.walk(start, self._is_legal):
            try:
                status = entry.stat(follow_symlinks=False)
                path = self._prefix + "/".join(parts)
                self._require_file(path, status)
            except (OSError, FileSystemError):
                continue
            yield path, meta_of(path, status)

    # -- directories ----------------------------------------------------------------------------------------------

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        parts = self._parts(inside)[:-1]
        found: list[EntryMeta] = []
        with (
            in_logical_words(inside.rstrip("/"), NotFoundError),
            self._tree.directory(parts) as directory,
            os.scandir(directory) as entries,
        ):
            for entry in entries:
                if self._is_legal([*parts, entry.name]):
                    with suppress(OSError, FileSystemError):  # gone by now, or nothing that is shown
                        found.append(self._described(inside + entry.name, entry.stat(follow_symlinks=False)))
        return found

    def _described(self, path: Path, status: os.stat_result) -> EntryMeta:
        if stat.S_ISDIR(status.st_mode):
            return directory_meta_of(path, status)
        self._require_file(path, status)
        return meta_of(path, status)

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        path = inside.rstrip("/")
        parts = self._parts(inside)[:-1]
        try:
            with in_logical_words(path, NotFoundError):
                status = self._tree.stat(parts or ["."])
        except NotFoundError:
            return None
        if stat.S_ISLNK(status.st_mode):
            raise InvalidPathError(f"{path!r} is a symbolic link", path)
        return directory_meta_of(path or "/", status) if stat.S_ISDIR(status.st_mode) else None

    # -- what counts ----------------------------------------------------------------------------------------------

    def _parts(self, path: Path) -> list[str]:
        """Take a valid path apart; raise `InvalidPathError` for what is ours."""
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
        """Raise unless this is a file that can only be reached by this path."""
        if stat.S_ISLNK(status.st_mode):
            raise InvalidPathError(f"{path!r} is a symbolic link", path)
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(f"there is no entry {path!r}", path)
        if status.st_nlink > 1 and not self._hard_links:
            raise InvalidPathError(f"{path!r} is a hard link: the same file has another name", path)

    def _patiently(self, look: Callable[[], os.stat_result]) -> os.stat_result:
        """Look at a file; once more where it has several names, for a writer that cannot do without may be at it.

        Where files without a name are not to be had, one that must not overwrite links its file to the name and then
        unlinks the temporary one; whoever moves a file and must not overwrite does so everywhere.
        """
        for _ in range(_PATIENCE):
            status = look()
            if status.st_nlink == 1 or self._hard_links or not stat.S_ISREG(status.st_mode):
                break
            time.sleep(0.001)
        return status


class DiskIndex(Mapping[Path, EntryMeta]):
    """The entries as they are at the moment of asking; one that is not asked for costs nothing."""

    def __init__(self, disk: DiskEntries) -> None:
        self._disk = disk

    def __getitem__(self, path: Path) -> EntryMeta:
        try:
            return self._disk.look(path)
        except NotFoundError:
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[Path]:
        return (path for path, _ in self.below("/"))

    def __len__(self) -> int:
        return sum(1 for _ in self.below("/"))

    def below(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Go through one directory of the disk only."""
        return self._disk.entries(prefix)


def meta_of(path: Path, status: os.stat_result) -> EntryMeta:
    """Describe a file."""
    version = f"{status.st_ino:x}-{status.st_ctime_ns:x}-{status.st_size:x}"  # not mtime: anybody can set that back
    return VersionedEntryMeta(path=path, size=status.st_size, updated_at=status.st_mtime, version=version)


def directory_meta_of(path: Path, status: os.stat_result) -> DirectoryMeta:
    """Describe a directory."""
    return DirectoryMeta(path=path, size=0, updated_at=status.st_mtime, directory=True)
