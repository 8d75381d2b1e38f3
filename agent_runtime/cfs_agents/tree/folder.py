"""The folder of a tree of agents (B3).

    {workspace_root}/{main_session_id}/
        messages.json           all messages of the root, its calls and their results, in order
        session_status.json     the state of its work
        steps.jsonl             what has changed in both since they were written
        agent_workspace/        the files that all agents share
        ledger.jsonl            the changes of each file, with their agents
        sub_sessions/{agent}/   the same three files, and agent_workspace -> ../../agent_workspace
                                An isolated agent has there a copy of the files, and a ledger.
        versions.db             the versions of the files and of the copies, if there are copies

Methods block.
"""

import os
from pathlib import Path

from cfs_agents.base.disk import disk_errors, sync_folder
from cfs_agents.base.folders import open_own_folder
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.locked_folder import LockedFolder
from cfs_agents.tree.published import NOTHING_EQUAL, PUBLISHED
from cfs_agents.tree.session_folder import MESSAGES, STATUS, STEPS, WORKSPACE_FOLDER, SessionFolder
from cfs_filesystem import DiskFileSystem

_log = get_logger(__name__)

SUB_SESSIONS = "sub_sessions"


class TreeFolder(LockedFolder):
    """The folder of a tree."""

    def __init__(self, workspace_root: str | os.PathLike[str], main_session_id: str, warn: Warn = _log.warning) -> None:
        self.workspace_root = Path(workspace_root).expanduser().absolute()
        super().__init__(self.workspace_root / main_session_id, warn)

    def _open_files(self) -> DiskFileSystem:
        self.workspace = self.path / WORKSPACE_FOLDER
        for name in (WORKSPACE_FOLDER, PUBLISHED.partition("/")[0], SUB_SESSIONS):
            os.close(open_own_folder(self.path, (name,), warn=self.warn))
        if not os.path.lexists(self.path / PUBLISHED):
            (self.path / PUBLISHED).write_bytes(NOTHING_EQUAL)
        for folder in ((self.path / PUBLISHED).parent, self.path, self.workspace_root, self.workspace_root.parent):
            sync_folder(folder)
        self.is_begun = self._has_work()
        """Whether agents have worked here before."""
        return DiskFileSystem(self.workspace, prefix=f"{WORKSPACE}/", durable=True)

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
        return SessionFolder(self.path, link=False, warn=self.warn)

    def sub(self, agent_id: str) -> SessionFolder:
        """Return the folder of a sub-agent, which is created when something is saved."""
        return SessionFolder(self.path / SUB_SESSIONS / agent_id, link=True, warn=self.warn)

    def subs(self) -> list[str]:
        """Return the ids of the sub-agents that have a folder."""
        with disk_errors(self.path):
            entries = (entry for entry in (self.path / SUB_SESSIONS).iterdir() if "." not in entry.name)
            return sorted(entry.name for entry in entries if entry.is_dir())
