"""Deletes the past of a workspace with its session. A deletion that a crash interrupts goes on at the next start."""

import asyncio

import structlog
from anyio import to_thread

from cfs_filesystem.versions import VersionsUnavailableError
from cfs_server.journal.journal import Journal
from cfs_server.workspaces.history import WorkspaceHistory

SPACE = "versions.forget"
_AGAIN_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class Forgetting:
    """Deletes the pasts of workspaces whose sessions are deleted. The files of a workspace stay."""

    def __init__(self, history: WorkspaceHistory, journal: Journal) -> None:
        self._history = history
        self._journal = journal
        self._noted = asyncio.Event()
        self._lock = asyncio.Lock()

    def session_deleted(self, session_id: str) -> None:
        """Note, with the deletion of the session itself, that the past of its workspace is to be deleted."""
        if self._history.may_have_versions(session_id):
            self._journal.keep(SPACE, session_id, "")
            self._noted.set()

    @staticmethod
    def note(journal: Journal, session_id: str) -> None:
        """Note the deletion of a session while its versions cannot be opened: the next start deletes them."""
        journal.keep(SPACE, session_id, "")

    async def run(self) -> None:
        """Delete what is noted, until cancelled."""
        while True:
            self._noted.clear()
            await self._journal.settled()  # a deletion that another owner of the sessions has refused deletes nothing
            for workspace in self._journal.kept(SPACE):
                try:
                    await self.forget(workspace)
                except VersionsUnavailableError as error:
                    _log.warning("versions.not_forgotten", workspace=workspace, reason=error.strerror)
                    await asyncio.sleep(_AGAIN_SECONDS)
                    self._noted.set()
            await self._noted.wait()

    async def forget(self, workspace: str) -> None:
        """Delete the past of a workspace now if that is noted, so that a new session gets none of it.

        Raises `VersionsUnavailableError`.
        """
        async with self._lock:  # else it could be deleted a second time, when the new one has a past
            if workspace in self._journal.kept(SPACE):
                await to_thread.run_sync(self._history.forget, workspace)
                self._journal.keep(SPACE, workspace, None)
