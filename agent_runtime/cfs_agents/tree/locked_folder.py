"""A folder with all of the state of an agent, or of a tree; one program at a time may have it open (A1, B3)."""

from collections.abc import Iterable
from pathlib import Path

from cfs.transports.async_http import AsyncClient
from cfs_agents.base.disk import disk_errors
from cfs_agents.base.folders import lock_folder
from cfs_agents.base.repairs import Warn
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.published import PublishedWorkspace, Reserve, no_reservation
from cfs_filesystem import OPERATIONS, DiskFileSystem, FsHandle, Grant


class LockedFolder:
    """A folder of the runtime, locked until `close` or the end of the process; threads may share it.

    `warn` gets a sentence for each repair. Raises `Conflict` if another program has the folder open, and `Unavailable`
    or `StorageFull` if the disk refuses. The constructor blocks.
    """

    def __init__(self, path: Path, warn: Warn) -> None:
        self.path = path
        self.warn = warn
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            self._unlock = lock_folder(self, path)
            try:
                self._disk = self._open_files()
            except BaseException:
                self._unlock()
                raise

    def _open_files(self) -> DiskFileSystem:
        """Make what is missing in the folder, and return the files that agents see. Raises `OSError`."""
        raise NotImplementedError

    def close(self) -> None:
        """Unlock the folder."""
        self._disk.close()
        self._unlock()

    def handle(self, grants: Iterable[Grant]) -> FsHandle:
        """Return a handle with these grants; writes wait for the disk."""
        return self._disk.create_handle(list(grants))

    def workspace_handle(self) -> FsHandle:
        """Return a handle with all rights on the workspace."""
        return self.handle([Grant(prefix=WORKSPACE, ops=OPERATIONS)])

    def publish(
        self, client: AsyncClient, name: str, memory: str, reserve: Reserve = no_reservation
    ) -> PublishedWorkspace:
        """Return the workspace as it is published on a server under a name; `memory` is a file of this folder."""
        files = self.workspace_handle()
        return PublishedWorkspace(client, name, files, f"{WORKSPACE}/", self.path / memory, reserve, self.warn)
