"""The workspaces of sessions at `/workspaces/<session>/...`: files on disk, or objects that servers share (G6)."""

import asyncio
import errno
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path as DiskPath
from typing import TypeAlias

import structlog

from cfs.errors import StorageFull, Unsupported
from cfs_filesystem import (
    ConflictError,
    DiskFileSystem,
    EntryMeta,
    FileSystemError,
    FsHandle,
    ObjectFileSystem,
    ObjectStore,
    Path,
    RouterFileSystem,
    StoredObject,
    open_store,
)
from cfs_filesystem.versions import (
    Author,
    Entry,
    FolderTrees,
    Kind,
    ObjectTrees,
    SqliteVersions,
    VersionRetention,
    VersionStore,
)
from cfs_server.base.clock import steady_time
from cfs_server.domain.ids import WORKSPACES
from cfs_server.workspaces.file_index import FileIndex
from cfs_server.workspaces.history import ForkedWorkspace, MergedWorkspace, WorkspaceHistory, WorkspaceMerge, back_up
from cfs_server.workspaces.scratch import scratch_folder

_log = structlog.get_logger(__name__)

SharedVersions: TypeAlias = Callable[[DiskPath | ObjectStore], VersionStore]
"""Opens the versions of a folder or an object store that several servers share."""

_TRUSTED_SECONDS = 10.0
_SHARED_SECONDS = 1.0


class Workspaces(RouterFileSystem):
    """A folder for each workspace, which is created explicitly or by its first file.

    A workspace has the id of its session. It is neither created nor deleted with the session.
    """

    def __init__(self, files: DiskFileSystem | ObjectFileSystem, history: WorkspaceHistory | None = None) -> None:
        super().__init__({WORKSPACES: files})
        self._files = files
        self.history = history
        """The versions of the files; None if they are not kept."""
        self.identity: str | None = None
        """The name of the object store, the same for all servers that share it. None for a folder."""
        self.versions_absent = ""
        """Why no versions are kept."""
        self.lacks_versions = False
        """Whether there are versions that could not be opened, because the disk is full."""
        self.changes = 0
        """The number of writes, deletions and moves by this server so far."""

        self.index: FileIndex | None = None
        """The index of text files; only of a folder, because only this server changes it."""

    def _changed(self, *paths: Path) -> None:
        self.changes += 1
        if self.index is not None:
            self.index.changed(*paths)

    def read(self, path: Path) -> bytes:
        """Return the content of an entry; raises `NotFoundError`."""
        return self._read_binary_impl(path)

    def look(self, path: Path) -> EntryMeta:
        """Return the metadata of an entry; raises `NotFoundError`."""
        return self._files.look(path)

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Yield the entries that a prefix covers, in any order."""
        return self._files.entries(prefix)

    def backup(self, target: DiskPath) -> dict[str, int] | None:
        """Write all versions to a new file, with the files as they are now as the newest ones.

        Returns the names of the workspaces with their permissions, also those of empty ones. Returns None if the files
        are in an object store; without versions it writes nothing then. Raises `OSError`.
        """
        if isinstance(self._files, ObjectFileSystem):
            if self.history is not None:
                self.history.backup(target)
            return None
        return back_up(self._files, self.history, target)

    def close(self) -> None:
        """Close the folder, or the connections to the store, and the versions."""
        if self.history is not None:
            self.history.close()
        self._files.close()

    def exists(self, workspace: str) -> bool:
        """Return whether there is a workspace."""
        is_there = self._directory_impl(f"{WORKSPACES}{workspace}/") is not None
        return is_there or (self.history is not None and self.history.is_there(workspace))

    def fork(self, workspace: str, copy: str, how: ForkedWorkspace) -> bool:
        """Copy a workspace with its past; see `WorkspaceHistory.fork`. Returns False if no versions are kept, too."""
        forked = self.history is not None and self.history.fork(workspace, copy, how)
        self._changed(WORKSPACES + copy)
        return forked

    def undo_fork(self, copy: str, mark: int, number: int, operation: str) -> bool:
        """Remove a copy of a workspace; see `WorkspaceHistory.undo_fork`."""
        undone = self.history is not None and self.history.undo_fork(copy, mark, number, operation)
        self._changed(WORKSPACES + copy)
        return undone

    def merge(self, target: str, source: str, operation: WorkspaceMerge) -> MergedWorkspace:
        """Merge a workspace into another one; see `WorkspaceHistory.merge`."""
        assert self.history is not None  # noqa: S101 - without versions nothing is merged
        try:
            return self.history.merge(target, source, operation)
        finally:
            self._changed(WORKSPACES + target)

    def finish_merge(self, target: str, source: str, numbers: tuple[int, int], by: Author) -> MergedWorkspace:
        """Carry out a merge that was interrupted; see `WorkspaceHistory.finish_merge`."""
        assert self.history is not None  # noqa: S101
        try:
            return self.history.finish_merge(target, source, numbers, by)
        finally:
            self._changed(WORKSPACES + target)

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        return self._write_from_impl(path, [data], overwrite)

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        _require_in_a_workspace(path)
        return self._written(path, source, None if overwrite else "")

    def _replace_impl(self, path: Path, source: Iterable[bytes], version: str) -> EntryMeta:
        return self._written(path, source, version)

    def _written(self, path: Path, source: Iterable[bytes], expected: str | None) -> EntryMeta:
        """Write a file that must have a version: an empty text if there must be none, None if it does not matter."""
        if self.history is None:
            written = self._store(path, source, expected)
        else:
            disk = self._files if isinstance(self._files, DiskFileSystem) else None
            with disk.flushing_beside() if disk is not None else nullcontext():  # the version is recorded meanwhile
                written = self.history.write(path, source, partial(self._store, path), expected)
        self._changed(path)
        return written

    def _store(self, path: Path, source: Iterable[bytes], expected: str | None) -> EntryMeta:
        if expected:
            return super()._replace_impl(path, source, expected)
        return super()._write_from_impl(path, source, expected is None)

    def _delete_impl(self, path: Path) -> None:
        self._deleted(path, None)

    def _delete_version_impl(self, path: Path, version: str) -> None:
        self._deleted(path, version)

    def _deleted(self, path: Path, expected: str | None) -> None:
        if self.history is None:
            self._remove(path, expected)
        else:
            self.history.delete(path, partial(self._remove, path), expected)
        self._changed(path)

    def _remove(self, path: Path, expected: str | None) -> None:
        if expected is None:
            super()._delete_impl(path)
        else:
            super()._delete_version_impl(path, expected)

    def _remove_directory_impl(self, path: Path) -> None:
        remove = partial(super()._remove_directory_impl, path)
        if self.history is None:
            remove()
        else:
            self.history.remove_folder(path, remove)
        self._changed(path)

    def _make_directory_impl(self, path: Path) -> None:
        make = partial(super()._make_directory_impl, path)
        if self.history is None:
            make()
        else:
            self.history.make_folder(path, make)

    def _remove_tree_impl(self, path: Path) -> None:
        remove = partial(super()._remove_tree_impl, path)
        if self.history is None:
            remove()
        else:
            self.history.remove_tree(path, remove)
        self._changed(path)

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        self._require_in_a_workspace_unless_directory(path, target)
        self._moved(path, target, partial(super()._move_impl, path, target, overwrite))

    def _move_over_impl(self, path: Path, target: Path) -> None:
        self._require_in_a_workspace_unless_directory(path, target)
        self._moved(path, target, partial(super()._move_over_impl, path, target))

    def _moved(self, path: Path, target: Path, move: Callable[[], None]) -> None:
        if self.history is None:
            move()
        elif "/" in path.removeprefix(WORKSPACES) or "/" in target.removeprefix(WORKSPACES):
            self.history.change_trees([path, target], Kind.MOVE, move)
        else:
            self.history.move_workspace(path, target, move)
        self._changed(path, target)

    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:
        self._require_in_a_workspace_unless_directory(path, target)
        copy = partial(super()._copy_impl, path, target, members=members, overwrite=overwrite)
        if self.history is None:
            copy()
        else:
            self.history.change_trees([path, target], Kind.COPY, copy)
        self._changed(target)

    def rewind(self, workspace: str, entries: Mapping[str, Entry | None], by: Author) -> list[str]:
        """Put entries of the past back into a workspace, by path; see `WorkspaceHistory.rewind`."""
        assert self.history is not None  # noqa: S101 - without versions nothing is rewound
        try:
            return self.history.rewind(workspace, entries, by)
        finally:
            self._changed(*[f"{WORKSPACES}{workspace}/{path}" for path in entries])

    def _require_in_a_workspace_unless_directory(self, path: Path, target: Path) -> None:
        if self._directory_impl(path + "/") is None:
            _require_in_a_workspace(target)


class DiskWorkspaces(Workspaces):
    """A folder on disk with one folder for each workspace.

    With `durable` a change is on the disk when it returns, so no interface acknowledges what a power loss could take
    back. With `versions` each change is recorded there.
    """

    def __init__(
        self,
        root: DiskPath,
        *,
        durable: bool = True,
        versions: VersionStore | None = None,
        retention: VersionRetention | None = None,
    ) -> None:
        files = DiskFileSystem(root, prefix=WORKSPACES, durable=durable)
        history = None
        if versions is not None:
            trees = FolderTrees(files.tree, durable=durable)
            history = WorkspaceHistory(versions, trees, retention or VersionRetention())
        super().__init__(files, history)


class ObjectWorkspaces(Workspaces):
    """A prefix of keys for each workspace, in an object store. With `versions` each change is recorded there."""

    def __init__(
        self, store: ObjectStore, *, versions: VersionStore | None = None, retention: VersionRetention | None = None
    ) -> None:
        files = ObjectFileSystem(store, prefix=WORKSPACES)
        history = None
        if versions is not None:
            history = WorkspaceHistory(versions, ObjectTrees(store), retention or VersionRetention())
            files.before_loss = partial(_keep, history)
        super().__init__(files, history)
        self.identity = store.identity()


def _keep(history: WorkspaceHistory, objects: Iterable[StoredObject]) -> None:
    history.keep({stored.key: stored.version for stored in objects if not stored.key.endswith("/")})


def _require_in_a_workspace(path: Path) -> None:
    if "/" not in path.removeprefix(WORKSPACES):
        raise ConflictError(f"{path!r} names a workspace; a file in it has a longer path", path)


@asynccontextmanager
async def open_workspaces(
    place: str | None,
    data_dir: DiskPath | None,
    retention: VersionRetention | None = None,
    absent: str = "",
    shared: SharedVersions | None = None,
) -> AsyncIterator[Workspaces]:
    """Open the workspaces in the folder or object store `place`, by default in the data folder.

    Without a data folder they are deleted when the server ends. With a `retention`, versions of the files are kept,
    without a data folder in memory; `absent` says why there is none. `shared` opens the versions of a folder or store
    that several servers share, or raises `Unsupported` with the reason why there are none. Raises `OSError` if the
    folder cannot be used, and `Unavailable` or `Unsupported` if the store cannot.
    """
    async with AsyncExitStack() as stack:
        kept = (data_dir, retention, shared)
        if place is not None and "://" in place:
            workspaces = await asyncio.to_thread(_in_store, place, *kept)
        else:
            root = DiskPath(place) if place is not None else data_dir and data_dir / "workspaces"
            folder = root or await stack.enter_async_context(scratch_folder()) / "workspaces"
            workspaces = await asyncio.to_thread(_in_folder, folder, *kept, durable=root is not None)
            workspaces.index = FileIndex(workspaces, data_dir and data_dir / "files.db")
        if workspaces.history is None:
            reason = absent or workspaces.versions_absent or "the disk was full when the server started"
            workspaces.versions_absent = reason
            _log.info("versions of files are not kept", reason=workspaces.versions_absent)
        try:
            yield workspaces
        finally:
            if workspaces.index is not None:
                await asyncio.to_thread(workspaces.index.close)
            await asyncio.to_thread(workspaces.close)


def _in_folder(
    folder: DiskPath,
    data_dir: DiskPath | None,
    retention: VersionRetention | None,
    shared: SharedVersions | None,
    *,
    durable: bool,
) -> Workspaces:
    opened = _open_versions(folder, data_dir, retention, shared)
    return opened.noted(DiskWorkspaces(folder, durable=durable, versions=opened.store, retention=retention))


def _in_store(
    url: str, data_dir: DiskPath | None, retention: VersionRetention | None, shared: SharedVersions | None
) -> Workspaces:
    store = open_store(url)
    store.check()
    how = (
        {"conditional": "by the store"}
        if not store.unconditional
        else {"conditional": "by the store, but these by this server", "except": sorted(store.unconditional)}
    )
    _log.info("workspaces are in an object store", store=url, **how)
    opened = _open_versions(store, data_dir, retention, shared)
    return opened.noted(ObjectWorkspaces(store, versions=opened.store, retention=retention))


@dataclass(frozen=True, slots=True)
class _OpenedVersions:
    """A store of versions; or the reason why there is none, and whether that is a full disk."""

    store: VersionStore | None = None
    absent: str = ""
    lacking: bool = False

    def noted(self, workspaces: Workspaces) -> Workspaces:
        workspaces.lacks_versions, workspaces.versions_absent = self.lacking, self.absent
        return workspaces


def _open_versions(
    place: DiskPath | ObjectStore,
    data_dir: DiskPath | None,
    retention: VersionRetention | None,
    shared: SharedVersions | None,
) -> _OpenedVersions:
    if retention is None:
        return _OpenedVersions()
    try:
        return _OpenedVersions(
            SqliteVersions(data_dir and data_dir / "versions.db", steady_time) if shared is None else shared(place)
        )
    except Unsupported as error:
        return _OpenedVersions(absent=error.detail)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _log.error("versions of files are not kept until the next start", reason=error.strerror)
        return _OpenedVersions(lacking=True)


class WorkspaceUsage:
    """The limited storage of the workspaces that one caller may write to (H7).

    The files are scanned when the last scan is ten seconds old. They are also scanned before a refusal if some have
    been written or deleted since the last scan, or, where other servers may have done so, if that is a second old.
    Writes of this server between scans are added. Only what others write between scans can exceed the limit: programs
    that write directly to disk, and other servers that share an object store.

    Versions of the files may take what the files leave of the limit. At each scan the oldest beyond that are forgotten.
    """

    def __init__(self, handle: FsHandle, workspaces: Workspaces) -> None:
        self._handle = handle
        self._workspaces = workspaces
        self._lock = threading.Lock()
        self._bytes = 0
        self._looked_at = -math.inf
        self._seen = -1
        """The number of changes at that time."""
        self._coming = 0
        """Bytes of writes in progress. They may be on disk already."""

    @property
    def history(self) -> WorkspaceHistory | None:
        """The versions of the files; None if they are not kept."""
        return self._workspaces.history

    @property
    def versions_absent(self) -> str:
        """Why no versions are kept."""
        return self._workspaces.versions_absent

    @contextmanager
    def room(self, path: Path, size: int, limit: int | None) -> Iterator[None]:
        """Reserve space for a file while it is written. Raises `StorageFull` if the limit would be exceeded."""
        with self._reserved(0 if limit is None else size - self._size(path), limit):
            yield

    @contextmanager
    def room_for_copy(self, path: Path, target: Path, limit: int | None) -> Iterator[None]:
        """Reserve space for a file or a directory while it is copied. Raises `StorageFull`."""
        with self._reserved(0 if limit is None else self._size_of_all(path) - self._size_of_all(target), limit):
            yield

    def room_for_new(self, size: int, limit: int | None) -> AbstractContextManager[None]:
        """Reserve space for new files while they are made. Raises `StorageFull`."""
        return self._reserved(size, limit)

    @contextmanager
    def _reserved(self, growth: int, limit: int | None) -> Iterator[None]:
        if limit is None:
            yield
            return
        held = max(growth, 0)
        with self._lock:
            if held:
                self._require(held, limit)
            self._coming += held
        written = 0
        try:
            yield
            written = growth
        finally:
            with self._lock:
                self._coming -= held
                self._bytes += written

    def _require(self, more: int, limit: int) -> None:
        if time.monotonic() - self._looked_at >= _TRUSTED_SECONDS:
            self._look(limit)
        if self._bytes + self._coming + more > limit and self._may_have_changed():
            self._look(limit)
        if self._bytes + self._coming + more > limit:
            raise StorageFull(
                f"your token may fill workspaces with {limit} bytes; {self._bytes} are there; delete some"
            )

    def _may_have_changed(self) -> bool:
        if self._seen != self._workspaces.changes:
            return True
        shared = self._workspaces.identity is not None
        return shared and time.monotonic() - self._looked_at >= _SHARED_SECONDS

    def _look(self, limit: int) -> None:
        self._looked_at, self._seen = time.monotonic(), self._workspaces.changes
        scopes = self._handle.scopes("write", WORKSPACES)
        self._bytes = sum(meta["size"] for scope in scopes for _, meta in self._workspaces.entries(scope))
        if self._workspaces.history is not None:
            self._workspaces.history.trim(scopes, max(0, limit - self._bytes - self._coming))

    def _size_of_all(self, path: Path) -> int:
        return sum(meta["size"] for _, meta in self._workspaces.entries(path))

    def _size(self, path: Path) -> int:
        try:
            return self._workspaces.look(path)["size"]
        except FileSystemError:
            return 0
