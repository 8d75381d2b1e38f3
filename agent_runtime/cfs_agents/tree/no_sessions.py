"""A tree without a server: nothing is sent anywhere, and no messages arrive."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from cfs.wire import CallDecision, Message
from cfs_agents.tools import CommandRequest, RemoteQuestion
from cfs_agents.tree.output import NoLease
from cfs_agents.tree.record import LeaseRecord
from cfs_agents.tree.session_backend import ClaimedTurn, DeletedCallback, LostCallback
from cfs_agents.tree.session_journal import SessionJournal


class NoSessions:
    """The backend of a tree without a server."""

    away = 0.0

    def attach(
        self,
        journals: Mapping[str, SessionJournal],
        on_message: Callable[[str], None],
        on_deleted: DeletedCallback,
    ) -> None:
        """Do nothing."""

    async def open(self, session_id: str) -> None:
        """Do nothing."""

    async def begin(self, session_id: str, content: str, on_lost: LostCallback) -> ClaimedTurn:  # noqa: ARG002 - as the protocol has it
        """Return a turn with this message."""
        return ClaimedTurn(NoLease(), content)

    async def next(self, session_id: str, on_lost: LostCallback, wait: float = 0.0) -> ClaimedTurn | None:  # noqa: ARG002
        """Return None: no messages can arrive here."""
        return None

    async def resume(
        self,
        session_id: str,  # noqa: ARG002
        record: LeaseRecord,
        sent: Sequence[Message],  # noqa: ARG002
        on_lost: LostCallback,  # noqa: ARG002
    ) -> ClaimedTurn | None:
        """Return the turn."""
        return ClaimedTurn(NoLease(), record.content, resumed=True)

    async def is_waiting(self, session_id: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def paused(self, session_id: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    async def unpaused(self, session_id: str) -> None:
        """Return at once."""

    async def watch(self, root: str) -> None:  # noqa: ARG002
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def cancel(self, session_id: str) -> None:
        """Do nothing."""

    def decided(self, session_id: str, decision: CallDecision) -> None:
        """Do nothing."""

    def question(self, session_id: str, request: CommandRequest, key: str) -> RemoteQuestion | None:  # noqa: ARG002
        """Return None."""
        return None
