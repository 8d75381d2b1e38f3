"""A folder with all of the state of an agent, or of a tree; one program at a time may have it open (A1, B3)."""

from collections.abc import Iterable
from pathlib import Path

from cfs.transports.async_http import AsyncClient
from cfs_agents.base.disk import disk_errors
from cfs_agents.base.folders import lock_folder
from cfs_agents.base.repairs import Warn
from cfs_agents.tools import CommandMode
from cfs_agents.tools.commands import home_of
from cfs_agents.tools.ignored import IgnoredFiles, agents_disk
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.given_workspace import remember, workspace_of
from cfs_agents.tree.published import PublishedWorkspace, Reserve, no_reservation
from cfs_filesystem import OPERATIONS, DiskFileSystem, FileSystemBase, FsHandle, Grant


class LockedFolder:
    """A folder of the runtime, locked until `close` or the end of the process; threads may share it.

    `workspace` is a folder elsewhere that the agents work on (default: that of the last time, or `own_name` in this
    one). `warn` gets a sentence for each repair. Raises `Conflict` if another program has the folder open, `NotFound`
    or `InvalidRequest` for a workspace that cannot be used, and `Unavailable` or `StorageFull` if the disk refuses. The
    constructor blocks.
    """

    def __init__(self, path: Path, warn: Warn, own_name: str, workspace: Path | None = None) -> None:
        self.path = path
        self.warn = warn
        self._disks: list[DiskFileSystem] = []
        own = path / own_name
        with disk_errors(path):
            self.workspace = workspace_of(path, workspace, own)
            """The folder that the agents work on."""
            self.has_own_workspace = self.workspace == own
            self.ignored = None if self.has_own_workspace else IgnoredFiles(self.workspace)
            """The files of a workspace elsewhere that agents do not look at."""
            path.mkdir(parents=True, exist_ok=True)
            self._unlock = lock_folder(self, path)
            try:
                remember(path, self.workspace, own)
                self._files = self._open_files()
            except BaseException:
                self.close()
                raise

    def _open_files(self) -> FileSystemBase:
        """Make what is missing in the folder, and return the files that agents see. Raises `OSError`."""
        raise NotImplementedError

    def _open_disk(self, path: Path, prefix: str = "/") -> DiskFileSystem:
        """Open a folder, which `close` closes. Raises `OSError`."""
        disk = agents_disk(path, prefix, None if path != self.workspace else self.ignored)
        self._disks.append(disk)
        return disk

    def close(self) -> None:
        """Unlock the folder."""
        for disk in self._disks:
            disk.close()
        self._unlock()

    def handle(self, grants: Iterable[Grant]) -> FsHandle:
        """Return a handle with these grants; writes wait for the disk."""
        return self._files.create_handle(list(grants))

    def shell_home(self, mode: CommandMode) -> Path | None:
        """Return the HOME of commands; None for the workspace."""
        return None if self.has_own_workspace else home_of(sandbox=mode is CommandMode.BWRAP)

    def workspace_handle(self) -> FsHandle:
        """Return a handle with all rights on the workspace."""
        return self.handle([Grant(prefix=WORKSPACE, ops=OPERATIONS)])

    def publish(
        self, client: AsyncClient, name: str, memory: str, reserve: Reserve = no_reservation
    ) -> PublishedWorkspace:
        """Return the workspace as it is published on a server under a name; `memory` is a file of this folder."""
        files = self.workspace_handle()
        place = f"{WORKSPACE}/"
        return PublishedWorkspace(client, name, files, place, self.path / memory, reserve, self.warn, self.ignored)
