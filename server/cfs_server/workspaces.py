"""The workspaces of sessions: files on disk at `/workspaces/<session>/...` (G6)."""

import asyncio
import math
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path as DiskPath

from cfs.errors import StorageFull
from cfs_filesystem import ConflictError, DiskFileSystem, EntryMeta, FileSystemError, FsHandle, Path
from cfs_server.sessions.ids import WORKSPACES

_TRUSTED_SECONDS = 10.0


class Workspaces(DiskFileSystem):
    """A folder on disk with one folder for each workspace. A workspace is created explicitly or by its first file.

    A workspace has the id of its session. It is neither created nor deleted with the session. With `durable` a change
    is on the disk when it returns, so no interface acknowledges what a power loss could take back.
    """

    def __init__(self, root: DiskPath, *, durable: bool = True) -> None:
        super().__init__(root, prefix=WORKSPACES, durable=durable)
        self.changes = 0
        """The number of writes, deletions and moves so far."""

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        _require_in_a_workspace(path)
        written = super()._write_impl(path, data, overwrite)
        self.changes += 1
        return written

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        _require_in_a_workspace(path)
        written = super()._write_from_impl(path, source, overwrite)
        self.changes += 1
        return written

    def _delete_impl(self, path: Path) -> None:
        super()._delete_impl(path)
        self.changes += 1

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        if self._directory_impl(path + "/") is None:
            _require_in_a_workspace(target)
        super()._move_impl(path, target, overwrite)
        self.changes += 1


def _require_in_a_workspace(path: Path) -> None:
    if "/" not in path.removeprefix(WORKSPACES):
        raise ConflictError(f"{path!r} names a workspace; a file in it has a longer path", path)


@asynccontextmanager
async def open_workspaces(data_dir: DiskPath | None) -> AsyncIterator[Workspaces]:
    """Open the workspaces in the data folder. Without a data folder they are deleted when the server ends."""
    root = data_dir or DiskPath(await asyncio.to_thread(tempfile.mkdtemp, prefix="cfs-"))
    workspaces = await asyncio.to_thread(partial(Workspaces, root / "workspaces", durable=data_dir is not None))
    try:
        yield workspaces
    finally:
        workspaces.close()
        if data_dir is None:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)


class WorkspaceUsage:
    """The limited storage of the workspaces that one caller may write to (H7).

    The disk is scanned when the last scan is ten seconds old. It is also scanned before a refusal if files have been
    written or deleted since the last scan. Writes between scans are added. Only files that programs write directly to
    disk between scans can exceed the limit.
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

    @contextmanager
    def room(self, path: Path, size: int, limit: int | None) -> Iterator[None]:
        """Reserve space for a file while it is written. Raises `StorageFull` if the limit would be exceeded."""
        if limit is None:
            yield
            return
        growth = size - self._size(path)
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
            self._look()
        if self._bytes + self._coming + more > limit and self._seen != self._workspaces.changes:
            self._look()
        if self._bytes + self._coming + more > limit:
            raise StorageFull(
                f"your token may fill workspaces with {limit} bytes; {self._bytes} are there; delete some"
            )

    def _look(self) -> None:
        self._looked_at, self._seen = time.monotonic(), self._workspaces.changes
        scopes = self._handle.scopes("write", WORKSPACES)
        self._bytes = sum(meta["size"] for scope in scopes for _, meta in self._workspaces.entries(scope))

    def _size(self, path: Path) -> int:
        try:
            return self._workspaces.look(path)["size"]
        except FileSystemError:
            return 0
