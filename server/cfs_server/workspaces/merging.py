"""Merges the files of a copy of a workspace back, or those of the original into its copy.

What is merged is stored in the journal before any file is changed. If the server is killed in between, the next start
finishes it: all files are merged, or none.
"""

import json
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import structlog
from anyio import from_thread, to_thread

from cfs_filesystem import FileSystemError
from cfs_filesystem.versions import Author
from cfs_server.domain.authors import author
from cfs_server.domain.ids import WORKSPACES
from cfs_server.journal.journal import Journal
from cfs_server.workspaces.file_service import stored
from cfs_server.workspaces.history import MergedWorkspace, WorkspaceMerge
from cfs_server.workspaces.workspaces import Workspaces

_SPACE = "workspaces.merge"

_log = structlog.get_logger(__name__)


class FileMerges:
    """Merges workspaces."""

    def __init__(self, workspaces: Workspaces, journal: Journal) -> None:
        self._workspaces = workspaces
        self._journal = journal

    async def merge(
        self, target: str, source: str, room: Callable[[int], AbstractContextManager[None]], *, dry_run: bool
    ) -> MergedWorkspace:
        """Merge a workspace into another one, or with `dry_run` only say what that would do.

        Raises `NotFoundError` if they have nothing in common, and `StorageFull`.
        """
        operation = uuid.uuid4().hex[:12]
        acting = author.get()
        by = Author("local" if acting is None else acting.principal, (acting and acting.agent) or target)

        async def keep(numbers: tuple[int, ...]) -> None:
            noted = {"target": target, "source": source, "numbers": numbers, "principal": by.principal}
            self._journal.keep(_SPACE, operation, json.dumps({**noted, "agent": by.agent}))
            await self._journal.durable()

        def note(*numbers: int) -> None:
            from_thread.run(keep, numbers)

        def carry_out() -> MergedWorkspace:
            with stored(WORKSPACES + target):
                return self._workspaces.merge(target, source, WorkspaceMerge(by, room, None if dry_run else note))

        await self.finish()  # what a full disk has interrupted
        merged = await to_thread.run_sync(carry_out)
        if not dry_run and operation in self._journal.kept(_SPACE):
            self._journal.keep(_SPACE, operation, None)
        return merged

    async def finish(self) -> None:
        """Finish the merges that were interrupted. Raises `StorageFull`."""
        for operation, text in self._journal.kept(_SPACE).items():
            noted = json.loads(text)
            target, (first, second) = noted["target"], noted["numbers"]
            by = Author(noted["principal"], noted["agent"])
            finish = partial(self._workspaces.finish_merge, target, noted["source"], (first, second), by)
            try:
                with stored(WORKSPACES + target):
                    merged = await to_thread.run_sync(finish)
            except (OSError, FileSystemError) as error:  # one of the two, or its past, is gone
                _log.error("merge.unfinished", workspace=target, source=noted["source"], reason=str(error))
            else:
                if merged.left:
                    _log.warning("merge.left_paths", workspace=target, paths=merged.left)
            self._journal.keep(_SPACE, operation, None)
