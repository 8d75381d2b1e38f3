"""Several file systems as one: each has the entries below its prefix (G6)."""
# ruff: noqa: SLF001  a router is a file system that calls the hooks of others

from collections.abc import Callable, Iterator, Mapping, Sequence

from cfs_filesystem._base import FileSystemBase
from cfs_filesystem._errors import ConflictError, InvalidPathError
from cfs_filesystem._index import entries_below
from cfs_filesystem._paths import covers, narrower
from cfs_filesystem._types import EntryMeta, Grant, Path


class RouterFileSystem(FileSystemBase):
    """Sends each path, unchanged, to the file system with the longest prefix that covers it.

    `RouterFileSystem({"/sessions/": sessions, "/workspaces/": DiskFileSystem(root, prefix="/workspaces/")})`.
    """

    def __init__(self, mounts: Mapping[Path, FileSystemBase]) -> None:
        super().__init__(sorted(mounts))
        for prefix, filesystem in mounts.items():
            if not any(covers(known, prefix) for known in filesystem.prefixes):
                raise InvalidPathError(f"the file system for {prefix!r} has no entries there", prefix)
        self._mounts = sorted(mounts.items(), key=lambda mount: -len(mount[0]))

    def _mount_of(self, path: Path) -> tuple[Path, FileSystemBase]:
        """The longest registered prefix that covers a path, and the file system there."""
        for prefix, filesystem in self._mounts:
            if path.startswith(prefix):
                return prefix, filesystem
        raise InvalidPathError(f"{path!r} is below none of the prefixes", path)

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
        return _RoutedIndex(self._mounts, self._mount_of, grants)

    def _read_binary_impl(self, path: Path) -> bytes:
        return self._mount_of(path)[1]._read_binary_impl(path)

    def _read_file_impl(self, path: Path, index: int | None, line: int | None) -> str:
        return self._mount_of(path)[1]._read_file_impl(path, index, line)

    def _read_re_impl(self, path: Path, pattern: str, overlap: int | None) -> list[str]:
        return self._mount_of(path)[1]._read_re_impl(path, pattern, overlap)

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        if any(mount.startswith(path + "/") for mount in self.prefixes):
            raise ConflictError(f"{path!r} is a directory: a file system is mounted there", path)
        return self._mount_of(path)[1]._write_impl(path, data, overwrite)

    def _delete_impl(self, path: Path) -> None:
        self._mount_of(path)[1]._delete_impl(path)


class _RoutedIndex(Mapping[Path, EntryMeta]):
    """The indexes of all mounts as one. Nothing is looked up before it is asked for."""

    def __init__(
        self,
        mounts: Sequence[tuple[Path, FileSystemBase]],
        mount_of: Callable[[Path], tuple[Path, FileSystemBase]],
        grants: Sequence[Grant],
    ) -> None:
        self._mounts = mounts
        self._mount_of = mount_of
        self._grants = grants

    def __getitem__(self, path: Path) -> EntryMeta:
        return self._mount_of(path)[1]._snapshot_impl(self._grants)[path]

    def __iter__(self) -> Iterator[Path]:
        return iter(path for path, _ in self.below("/"))

    def __len__(self) -> int:
        return len(self.below("/"))

    def below(self, prefix: Path) -> list[tuple[Path, EntryMeta]]:
        """Ask the mounts that can have something there; an entry that another mount hides does not count."""
        found: list[tuple[Path, EntryMeta]] = []
        for mount, filesystem in self._mounts:
            both = narrower(mount, prefix)
            if both is not None:
                entries = entries_below(filesystem._snapshot_impl(self._grants), both)
                found += (entry for entry in entries if self._mount_of(entry[0])[0] == mount)
        return found
