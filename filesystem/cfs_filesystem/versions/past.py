"""The past of workspaces as a read-only file system (G3): `/workspaces/main/a.txt` as it was at a number or a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import BinaryIO, NoReturn

from cfs_filesystem._base import FileSystemBase, LiveIndex
from cfs_filesystem._errors import AccessDeniedError, InvalidArgumentError, InvalidPathError, NotFoundError
from cfs_filesystem._paths import validate_path
from cfs_filesystem._types import DirectoryMeta, EntryMeta, Grant, Path, VersionedEntryMeta, time_of
from cfs_filesystem.versions.model import Entry, EntryType
from cfs_filesystem.versions.store import VersionStore


class PastFileSystem(FileSystemBase):
    """The workspaces below a prefix after a change, which has a number in one workspace, or at a time.

    A handle on it checks the same paths as one on the workspaces themselves (`FsHandle.on`).
    """

    def __init__(self, store: VersionStore, prefix: Path, at: int | datetime) -> None:
        super().__init__([prefix])
        self._store = store
        self._prefix = prefix
        self._at = at

    def look(self, path: Path) -> EntryMeta:
        """Return the metadata of an entry; raises `NotFoundError`."""
        return self._meta(path, self._entry(path)[1])

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Yield the entries that a prefix covers."""
        for workspace, below in self._covered(prefix):
            for entry in self._store.tree_at(workspace, self._number(workspace), below).values():
                path = f"{self._prefix}{workspace}/{entry.path}"
                if entry.type is EntryType.FILE and path.startswith(prefix) and self._is_legal(path):
                    yield path, self._meta(path, entry)

    def _covered(self, prefix: Path) -> Iterator[tuple[str, str]]:
        """Return the workspaces that a prefix covers, and the path in them."""
        if prefix.startswith(self._prefix) and "/" in (rest := prefix.removeprefix(self._prefix)):
            workspace, _, below = rest.partition("/")
            return iter([(workspace, below.removesuffix("/"))])
        if not isinstance(self._at, datetime):
            raise InvalidArgumentError(
                f"the number {self._at} is one of a workspace: name it, as in {self._prefix}NAME/, or give a time"
            )
        names = (name for name in self._store.workspaces() if f"{self._prefix}{name}/".startswith(prefix))
        return ((name, "") for name in names)

    def _number(self, workspace: str) -> int:
        """Return the number in a workspace. Raises `InvalidArgumentError` if there is no such version."""
        try:
            if isinstance(self._at, datetime):
                return self._store.number_at(workspace, self._at.timestamp())
            self._store.at(workspace, "", self._at)
        except NotFoundError as error:
            raise InvalidArgumentError(error.detail, self._prefix + workspace) from None
        return self._at

    def _entry(self, path: Path) -> tuple[str, Entry]:
        workspace, _, below = path.removeprefix(self._prefix).partition("/")
        entry = self._store.at(workspace, below, self._number(workspace)) if below else None
        if entry is None or entry.type is not EntryType.FILE:
            raise NotFoundError(f"there was no entry {path!r}", path)
        return workspace, entry

    def _meta(self, path: Path, entry: Entry) -> EntryMeta:
        return VersionedEntryMeta(path=path, size=entry.size, updated_at=time_of(entry.at), version=entry.digest[:32])

    def _is_legal(self, path: Path) -> bool:
        try:
            validate_path(path)
        except InvalidPathError:
            return False
        return True

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        return LiveIndex(self)

    def _read_binary_impl(self, path: Path) -> bytes:
        return self._store.read(*self._entry(path))

    def _open_impl(self, path: Path) -> BinaryIO:
        return self._store.open(*self._entry(path))

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        directory = self._directory_impl(inside)
        if directory is None:
            raise NotFoundError(f"there was no directory {inside[:-1]!r}", inside[:-1])
        if inside == self._prefix:
            return [
                DirectoryMeta(path=self._prefix + name, size=0, updated_at=directory["updated_at"], directory=True)
                for name, _ in self._covered(inside)
                if self._is_legal(self._prefix + name)
            ]
        members: dict[Path, EntryMeta] = {}
        workspace, _, below = inside.removeprefix(self._prefix).partition("/")
        for entry in self._store.tree_at(workspace, self._number(workspace), below[:-1]).values():
            path = f"{self._prefix}{workspace}/{entry.path}"
            if path.startswith(inside) and "/" not in path[len(inside) :] and self._is_legal(path):
                if entry.type is EntryType.FILE:
                    members[path] = self._meta(path, entry)
                elif entry.type is EntryType.FOLDER:
                    members[path] = DirectoryMeta(path=path, size=0, updated_at=time_of(entry.at), directory=True)
        return members.values()

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        workspace, _, below = inside.removeprefix(self._prefix).partition("/")
        path, at = inside[:-1] or "/", 0.0
        if below:
            entry = self._store.at(workspace, below[:-1], self._number(workspace))
            if entry is None or entry.type is not EntryType.FOLDER:
                return None
            at = entry.at
        elif workspace and not self._number(workspace):
            return None
        return DirectoryMeta(path=path, size=0, updated_at=time_of(at), directory=True)

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> NoReturn:  # noqa: ARG002
        raise AccessDeniedError(f"{path!r} is the past, which cannot be changed", path)

    def _delete_impl(self, path: Path) -> NoReturn:
        raise AccessDeniedError(f"{path!r} is the past, which cannot be changed", path)
