"""Combines several file systems: each one serves the paths below its prefix (G6)."""
# ruff: noqa: SLF001  a router is a file system that calls the hooks of others

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from cfs_filesystem._base import FileSystemBase
from cfs_filesystem._errors import ConflictError, InvalidPathError
from cfs_filesystem._handle import entries_below
from cfs_filesystem._paths import covers, narrower
from cfs_filesystem._types import DirectoryMeta, EntryMeta, Grant, Path


class RouterFileSystem(FileSystemBase):
    """Sends each path, unchanged, to the file system with the longest prefix that covers it.

    `RouterFileSystem({"/sessions/": sessions, "/workspaces/": DiskFileSystem(root, prefix="/workspaces/")})`.
    """

    def __init__(self, mounts: Mapping[Path, FileSystemBase]) -> None:
        super().__init__(sorted(mounts))
        for prefix, filesystem in mounts.items():
            if not any(covers(existing, prefix) for existing in filesystem.prefixes):
                raise InvalidPathError(f"the file system for {prefix!r} has no entries there", prefix)
        self._mounts = sorted(mounts.items(), key=lambda mount: -len(mount[0]))
        self.undeletable = tuple(
            both
            for prefix, filesystem in self._mounts
            for path in filesystem.undeletable
            if (both := narrower(prefix, path)) is not None
        )

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

    def _open_impl(self, path: Path) -> BinaryIO:
        return self._mount_of(path)[1]._open_impl(path)

    def _read_file_impl(self, path: Path, *, index: int | None, line: int | None) -> str:
        return self._mount_of(path)[1]._read_file_impl(path, index=index, line=line)

    def _read_re_impl(self, path: Path, pattern: str, overlap: int | None) -> list[str]:
        return self._mount_of(path)[1]._read_re_impl(path, pattern, overlap)

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        self._require_no_mount(path)
        return self._mount_of(path)[1]._write_impl(path, data, overwrite)

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        self._require_no_mount(path)
        return self._mount_of(path)[1]._write_from_impl(path, source, overwrite)

    def _replace_impl(self, path: Path, source: Iterable[bytes], version: str) -> EntryMeta:
        self._require_no_mount(path)
        return self._mount_of(path)[1]._replace_impl(path, source, version)

    def _delete_impl(self, path: Path) -> None:
        self._mount_of(path)[1]._delete_impl(path)

    def _delete_version_impl(self, path: Path, version: str) -> None:
        self._mount_of(path)[1]._delete_version_impl(path, version)

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        return self._mount_of(inside)[1]._members(inside).values()

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        return self._mount_of(inside)[1]._directory(inside)

    def _make_directory_impl(self, path: Path) -> None:
        self._require_no_mount(path)
        self._mount_of(path)[1]._make_directory_impl(path)

    def _remove_directory_impl(self, path: Path) -> None:
        self._require_no_mount(path)
        self._mount_of(path)[1]._remove_directory_impl(path)

    def _remove_tree_impl(self, path: Path) -> None:
        self._require_no_mount(path)
        self._mount_of(path)[1]._remove_tree_impl(path)

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        self._mount_of_both(path, target)._move_impl(path, target, overwrite)

    def _move_over_impl(self, path: Path, target: Path) -> None:
        self._mount_of_both(path, target)._move_over_impl(path, target)

    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:
        self._mount_of_both(path, target)._copy_impl(path, target, members=members, overwrite=overwrite)

    def _mount_of_both(self, path: Path, target: Path) -> FileSystemBase:
        """Return the file system of two paths; raise `ConflictError` if there are two, or one is mounted there."""
        for moved in (path, target):
            self._require_no_mount(moved)
        mount, filesystem = self._mount_of(path)
        if self._mount_of(target)[0] != mount:
            raise ConflictError(f"{path!r} and {target!r} are in two file systems: copy it, then delete it", target)
        return filesystem

    def _require_no_mount(self, path: Path) -> None:
        if any(mount.startswith(path + "/") for mount in self.prefixes):
            raise ConflictError(f"{path!r} is a directory: a file system is mounted there", path)


class _RoutedIndex(Mapping[Path, EntryMeta]):
    """The combined index of all mounts. Look-ups are lazy."""

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
        """Return the entries below a prefix; an entry that another mount hides is left out."""
        matches: list[tuple[Path, EntryMeta]] = []
        for mount, filesystem in self._mounts:
            both = narrower(mount, prefix)
            if both is not None:
                entries = entries_below(filesystem._snapshot_impl(self._grants), both)
                matches += (entry for entry in entries if self._mount_of(entry[0])[0] == mount)
        return matches
