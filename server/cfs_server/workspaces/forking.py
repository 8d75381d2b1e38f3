"""Lets a copy of a session take a copy of its workspace, with the past.

The files come first. On a disk they become visible when they are complete. What is made is stored in the journal before
it is made, and forgotten with the record of the new session, as one. If there is no session in the end, or the server
is killed in between, the copy of the files is removed: both are there, or none.
"""

import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Protocol

import structlog
from anyio import CancelScope, from_thread, to_thread

from cfs.errors import AlreadyExists, CfsError
from cfs_filesystem import NotFoundError
from cfs_filesystem.versions import Author
from cfs_server.domain.authors import author
from cfs_server.domain.ids import WORKSPACES
from cfs_server.domain.past import Moment
from cfs_server.workspaces.file_service import stored
from cfs_server.workspaces.forgetting import Forgetting
from cfs_server.workspaces.history import ForkedWorkspace
from cfs_server.workspaces.workspaces import Workspaces

_SPACE = "workspaces.fork"

_log = structlog.get_logger(__name__)


class _Documents(Protocol):
    """The small documents of a journal."""

    def keep(self, space: str, name: str, value: str | None) -> None: ...

    def kept(self, space: str) -> dict[str, str]: ...

    async def durable(self) -> None: ...


class FileForks:
    """Copies workspaces for copies of sessions."""

    def __init__(self, workspaces: Workspaces, journal: _Documents, forgetting: Forgetting) -> None:
        self._workspaces = workspaces
        self._journal = journal
        self._forgetting = forgetting
        self._being_made: set[str] = set()

    @asynccontextmanager
    async def forked(
        self,
        workspace: str,
        copy: str,
        at: Moment | None,
        room: Callable[[int], AbstractContextManager[None]],
        *,
        vacant: bool,
    ) -> AsyncIterator[str]:
        """Copy a workspace, as it is or as it was at a moment.

        The session is made in the block, which then ends at once. If the block raises, the copy is removed. With
        `vacant` no session has the new name: an empty folder of the name makes room. Yields why there is no copy, or an
        empty text. Raises `StorageFull`, and `AlreadyExists` while another copy of this name is being made.
        """
        operation = uuid.uuid4().hex[:12]
        by = author.get()
        author_of_copy = Author("local" if by is None else by.principal, (by and by.agent) or "", operation)

        async def keep(mark: int, number: int) -> None:
            self._journal.keep(_SPACE, operation, json.dumps({"copy": copy, "inode": mark, "number": number}))
            await self._journal.durable()

        def note(mark: int, number: int) -> None:
            from_thread.run(keep, mark, number)

        await self._undo_failed()
        with self._alone(copy):
            try:
                await self._forgetting.forget(copy)
                how = ForkedWorkspace(at, author_of_copy, room, note, vacant)
                reason = await to_thread.run_sync(self._fork, workspace, copy, how)
                if reason:  # a program may have made a folder of this name after the note
                    await self._undo(operation)
                yield reason
            except BaseException:
                with CancelScope(shield=True):
                    await self._undo(operation)
                raise
            if operation in self._journal.kept(_SPACE):
                self._journal.keep(_SPACE, operation, None)

    @contextmanager
    def _alone(self, copy: str) -> Iterator[None]:
        """Let only this block make a copy of a name: another would take the folder of this one for one that stays."""
        if copy in self._being_made:
            raise AlreadyExists(f"another copy gets the name {copy!r} just now")
        self._being_made.add(copy)
        try:
            yield
        finally:
            self._being_made.discard(copy)

    def _fork(self, workspace: str, copy: str, how: ForkedWorkspace) -> str:
        try:
            with stored(WORKSPACES + copy):
                self._workspaces.fork(workspace, copy, how)
        except FileExistsError:
            return f"{WORKSPACES}{copy} exists already"
        except NotFoundError as error:
            return error.detail
        return ""

    async def _undo(self, operation: str) -> None:
        text = self._journal.kept(_SPACE).get(operation)
        if text is None:
            return
        noted = json.loads(text)
        with stored(WORKSPACES + noted["copy"]):
            removed = await to_thread.run_sync(
                self._workspaces.undo_fork, noted["copy"], noted["inode"], noted["number"], operation
            )
        if not removed:
            _log.warning("fork.files_left", workspace=noted["copy"])
        self._journal.keep(_SPACE, operation, None)

    async def _undo_failed(self) -> None:
        """Remove what could not be removed when a copy failed, as the bucket did not answer then."""
        for operation, text in list(self._journal.kept(_SPACE).items()):
            copy = json.loads(text)["copy"]
            if copy not in self._being_made:
                try:
                    with self._alone(copy):
                        await self._undo(operation)
                except (CfsError, OSError) as error:  # it is tried again, and does not concern this caller
                    _log.warning("fork.files_left", workspace=copy, reason=str(error))

    async def undo(self) -> None:
        """Remove the copies of files whose sessions were not made before the server ended."""
        for operation in self._journal.kept(_SPACE):
            await self._undo(operation)
