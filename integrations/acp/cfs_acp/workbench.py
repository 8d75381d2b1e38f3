"""The workbench of one session: its folder as /workspace, a private folder as /storage, and a shell."""

from pathlib import Path

from cfs.wire import ToolCall
from cfs_acp.updates import CHANGING, place_of
from cfs_agents.base.threads import in_thread
from cfs_agents.context import ContextFileSystem
from cfs_agents.project.instructions import FolderInstructions
from cfs_agents.tools import (
    AsyncPersistentShell,
    CommandMode,
    CommandTools,
    FileTools,
    PathManager,
    Reaper,
    ShellSettings,
    Tool,
    shell_for,
)
from cfs_agents.tools.commands import home_of
from cfs_agents.tools.ignored import IgnoredFiles, agents_disk
from cfs_agents.tools.paths import STORAGE, WORKSPACE, file_path
from cfs_filesystem import OPERATIONS, DiskFileSystem, FileSystemError, Grant, RouterFileSystem

_OFFLOADED = f"{STORAGE}/offloaded"
_LARGEST_SHOWN = 1 << 20
"""Bytes; changes of larger files are not shown as a difference."""


class Workbench:
    """What an agent works with. `root` is the folder of this machine whose `storage` is the agent's /storage.

    The file tools never leave the two folders: links are not followed. Commands are confined only in the sandbox. The
    constructor blocks, and raises `OSError` for a folder that cannot be used.
    """

    def __init__(self, cwd: Path, root: Path, keep_variables: frozenset[str] = frozenset()) -> None:
        storage = root / STORAGE[1:]
        self.paths = PathManager(root, cwd, folder="")
        self._ignored = IgnoredFiles(cwd)
        self._disks = (
            agents_disk(cwd, f"{WORKSPACE}/", self._ignored),
            DiskFileSystem(storage, prefix=f"{STORAGE}/", durable=True, private=True),
        )
        router = RouterFileSystem(dict(zip((f"{WORKSPACE}/", f"{STORAGE}/"), self._disks, strict=True)))
        self.handle = router.create_handle([Grant(prefix=prefix, ops=OPERATIONS) for prefix in (WORKSPACE, STORAGE)])
        self.files = ContextFileSystem(root / _OFFLOADED[1:], "conversation", shown_as=_OFFLOADED, trusted=storage)
        self._root, self._cwd, self._storage, self._keep_variables = root, cwd, storage, keep_variables
        self._instructions = FolderInstructions(self.handle, WORKSPACE)
        self._reaper = Reaper()
        self._shell: AsyncPersistentShell | None = None
        self.confined = False
        """Whether commands run in the sandbox."""

    async def tools(self, mode: CommandMode) -> list[Tool]:
        """Return the tools for a mode of commands."""
        tools = FileTools(self.handle, ignored=self._ignored, note_of=self._instructions.note).tools()
        if mode is CommandMode.NONE:
            return tools
        confined = mode is CommandMode.BWRAP
        if self._shell is not None and confined is not self.confined:
            await self._close_shell()
        self.confined = confined
        if self._shell is None:
            self._shell = AsyncPersistentShell(self._settings(confined=confined))
        commands = CommandTools(self._shell, self._root, self.handle, workspace=self._cwd)
        return [*tools, *commands.tools()]

    def _settings(self, *, confined: bool) -> ShellSettings:
        return shell_for(
            {WORKSPACE: self._cwd, STORAGE: self._storage},
            sandbox=confined,
            home=home_of(sandbox=confined),
            records=self._storage / "commands",  # not in the folder of the editor
            keep_variables=self._keep_variables,
            reaper=self._reaper,
        )

    async def text_of(self, call: ToolCall) -> str | None:
        """Return the present text of the file that a call is to change; None if there is none, or it is too large."""
        if call.name not in CHANGING or place_of(call, self.paths) is None:
            return None
        logical = file_path(str(call.arguments["path"]))
        return await in_thread(lambda: self._text(logical))

    def _text(self, logical: str) -> str | None:
        try:
            if self.handle.file(logical)["size"] > _LARGEST_SHOWN:
                return None
            return self.handle.read_file(logical)
        except FileSystemError:
            return None

    async def close(self) -> None:
        """End the shell with all of its processes, and close the folders."""
        await self._close_shell()
        self._reaper.close()
        self.files.close()
        for disk in self._disks:
            disk.close()

    async def _close_shell(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.close()
