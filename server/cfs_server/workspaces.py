"""The workspaces of sessions: `/workspaces/<session>/...`, files of the disk (G6)."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path as DiskPath

from cfs.errors import StorageFull
from cfs_filesystem import ConflictError, DiskFileSystem, EntryMeta, FsHandle, Path
from cfs_server.sessions.paths import WORKSPACES

_TRUSTED_SECONDS = 10.0


class Workspaces(DiskFileSystem):
    """A folder of the disk with one folder for each workspace, made by the first file in it.

    A workspace is called as the session is; it neither comes nor goes with it.
    """

    def __init__(self, root: DiskPath) -> None:
        super().__init__(root, prefix=WORKSPACES)

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        if "/" not in path.removeprefix(WORKSPACES):
            raise ConflictError(f"{path!r} names a workspace; a file in it has a longer path", path)
        return super()._write_impl(path, data, overwrite)


@asynccontextmanager
async def open_workspaces(data_dir: DiskPath | None) -> AsyncIterator[Workspaces]:
    """Open the workspaces below the data folder; without one they end with the server, as the sessions do."""
    root = data_dir or DiskPath(await asyncio.to_thread(tempfile.mkdtemp, prefix="cfs-"))
    workspaces = await asyncio.to_thread(Workspaces, root / "workspaces")
    try:
        yield workspaces
    finally:
        workspaces.close()
        if data_dir is None:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)


class Usage:
    """The bytes of files in the workspaces that one caller may write to, bounded (H7).

    The disk is looked through when what is known is ten seconds old; what is written meanwhile is added. So a bound
    holds but for what programs write past the gate in that time.
    """

    def __init__(self, handle: FsHandle, workspaces: Workspaces) -> None:
        self._handle = handle
        self._workspaces = workspaces
        self._bytes = 0
        self._looked_at = -_TRUSTED_SECONDS

    def require_room(self, size: int, limit: int | None) -> None:
        """Raise `StorageFull` unless so many bytes more are within the limit; then count them."""
        if limit is None:
            return
        if self.look() + size > limit:
            raise StorageFull(
                f"your token may fill workspaces with {limit} bytes; {self._bytes} are there; delete some"
            )
        self._bytes += size

    def look(self) -> int:
        """Return how many bytes there are."""
        if time.monotonic() - self._looked_at > _TRUSTED_SECONDS:
            scopes = self._handle.scopes("write", WORKSPACES)
            self._bytes = sum(meta["size"] for scope in scopes for _, meta in self._workspaces.entries(scope))
            self._looked_at = time.monotonic()
        return self._bytes
