"""The folder of a tree of agents (B3).

    {workspace_root}/{main_session_id}/
        messages.json           all messages of the root, its calls and their results, in order
        session_status.json     the state of its work
        steps.jsonl             what has changed in both since they were written
        agent_workspace/        the files that all agents share, unless they are elsewhere
        workspace.json          where they are then
        ledger.jsonl            the changes of each file, with their agents
        sub_sessions/{agent}/   the same three files, and agent_workspace, a link to the shared files
                                An isolated agent has there a copy of the files, and a ledger.
        versions.db             the versions of the files and of the copies, if there are copies

Methods block.
"""

import os
from contextlib import suppress
from pathlib import Path

from cfs_agents.base.disk import disk_errors, sync_folder
from cfs_agents.base.folders import open_own_folder
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.locked_folder import LockedFolder
from cfs_agents.tree.published import NOTHING_EQUAL, PUBLISHED
from cfs_agents.tree.session_folder import MESSAGES, STATUS, STEPS, WORKSPACE_FOLDER, SessionFolder
from cfs_filesystem import OPERATIONS, DiskFileSystem, FileSystemError, Grant

_log = get_logger(__name__)

SUB_SESSIONS = "sub_sessions"
_IGNORED = "# The files of agents. The rules are the project's own.\n*\n!rules.toml\n"


class TreeFolder(LockedFolder):
    """The folder of a tree. `workspace` is a folder elsewhere that its agents work on."""

    def __init__(
        self,
        workspace_root: str | os.PathLike[str],
        main_session_id: str,
        warn: Warn = _log.warning,
        *,
        workspace: Path | None = None,
    ) -> None:
        self.workspace_root = Path(workspace_root).expanduser().absolute()
        super().__init__(self.workspace_root / main_session_id, warn, WORKSPACE_FOLDER, workspace)

    def _open_files(self) -> DiskFileSystem:
        own = (WORKSPACE_FOLDER,) if self.has_own_workspace else ()
        for name in (*own, PUBLISHED.partition("/")[0], SUB_SESSIONS):
            os.close(open_own_folder(self.path, (name,), warn=self.warn))
        if not os.path.lexists(self.path / PUBLISHED):
            (self.path / PUBLISHED).write_bytes(NOTHING_EQUAL)
        for folder in ((self.path / PUBLISHED).parent, self.path, self.workspace_root, self.workspace_root.parent):
            sync_folder(folder)
        self.is_begun = self._has_work()
        """Whether agents have worked here before."""
        disk = self._open_disk(self.workspace, f"{WORKSPACE}/")
        if not self.has_own_workspace:
            with suppress(FileSystemError):  # it is there already, or the folder cannot be written
                ignore = disk.create_handle([Grant(prefix=WORKSPACE, ops=OPERATIONS)])
                ignore.write(f"{WORKSPACE}/.cfs/.gitignore", _IGNORED, overwrite=False)
        return disk

    def _has_work(self) -> bool:
        """Return whether there are messages or steps, perhaps damaged: an agent that only waited has neither."""
        if not any(os.path.lexists(self.path / name) for name in (STATUS, MESSAGES)):
            return False
        try:
            messages, steps = (self.path / MESSAGES).read_bytes(), (self.path / STEPS).read_bytes()
        except OSError:
            return True
        return messages.split() != [b"[", b"]"] or steps.count(b"\n") != 1

    def main(self) -> SessionFolder:
        """Return the root's folder."""
        return SessionFolder(self.path, link=None, warn=self.warn)

    def sub(self, agent_id: str) -> SessionFolder:
        """Return the folder of a sub-agent, which is created when something is saved."""
        link = Path("..", "..", WORKSPACE_FOLDER) if self.has_own_workspace else self.workspace
        return SessionFolder(self.path / SUB_SESSIONS / agent_id, link=link, warn=self.warn)

    def subs(self) -> list[str]:
        """Return the ids of the sub-agents that have a folder."""
        with disk_errors(self.path):
            entries = (entry for entry in (self.path / SUB_SESSIONS).iterdir() if "." not in entry.name)
            return sorted(entry.name for entry in entries if entry.is_dir())
