"""The sessions of a tree's agents: what the agents need of them (B3)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cfs.wire import AgentWork, CallDecision, Message, Usage
from cfs_agents.tools import CommandRequest, RemoteQuestion
from cfs_agents.tree.record import LeaseRecord
from cfs_agents.tree.session_journal import SessionJournal

LostCallback = Callable[[str], None]
"""Gets the reason, in words, when a turn was cancelled or taken over."""

DeletedCallback = Callable[[str, str], None]
"""Gets the id of a session that was deleted or renamed, and the reason in words."""


class TurnLease(Protocol):
    """The right to answer one turn."""

    @property
    def record(self) -> LeaseRecord | None:
        """The data that another process needs to continue the turn; None if there is no server."""
        ...

    def text(self, piece: str) -> None:
        """Send a piece of a reply."""
        ...

    def message(self, message: Message) -> None:
        """Send a whole message: calls, a result, or a message that arrived meanwhile."""
        ...

    def work(self, work: AgentWork) -> None:
        """Send what the agent says of its work; the end of the turn sends it again."""
        ...

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """End the turn with a reply, or with an error; does nothing if the turn was lost."""
        ...

    async def close(self) -> None:
        """Stop without ending the turn: another process will continue it before the lease expires."""
        ...


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """A claimed turn and the message that it answers; `resumed` if another process had started the answer."""

    lease: TurnLease
    content: str
    resumed: bool = False


class SessionBackend(Protocol):
    """Where the sessions of a tree are."""

    @property
    def away(self) -> float:
        """For how many seconds in all there has been no server."""
        ...

    def attach(
        self,
        journals: Mapping[str, SessionJournal],
        on_message: Callable[[str], None],
        on_deleted: DeletedCallback,
    ) -> None:
        """Work for this tree: `journals` by session id, parents first.

        `on_message` gets the id of a session in which a message waits, `on_deleted` of one that was deleted or renamed.
        """
        ...

    async def open(self, session_id: str) -> None:
        """Create the session unless it exists, and let an agent answer it.

        Raises `SessionDeleted` or `SessionRenamed` if that has happened to the session that the agent had.
        """
        ...

    async def begin(self, session_id: str, content: str, on_lost: LostCallback) -> ClaimedTurn:
        """Post a message to the session, unless it has it already, and claim the next turn."""
        ...

    async def next(self, session_id: str, on_lost: LostCallback, wait: float = 0.0) -> ClaimedTurn | None:
        """Claim the next turn; None if there is none within so many seconds."""
        ...

    async def resume(
        self, session_id: str, record: LeaseRecord, sent: Sequence[Message], on_lost: LostCallback
    ) -> ClaimedTurn | None:
        """Continue a turn of another process, which had stored the messages `sent` in it; None if the turn is over."""
        ...

    async def is_waiting(self, session_id: str) -> bool:
        """Whether a message waits in this session."""
        ...

    def paused(self, session_id: str) -> bool:
        """Whether this session, or one above it, is paused."""
        ...

    async def unpaused(self, session_id: str) -> None:
        """Wait until it is not paused."""
        ...

    async def watch(self, root: str) -> None:
        """Follow the events of the sessions of a tree, until cancelled."""
        ...

    async def cancel(self, session_id: str) -> None:
        """Cancel all turns of a session and of those below it."""
        ...

    def decided(self, session_id: str, decision: CallDecision) -> None:
        """Report what was decided about a call in the running turn, with the next message of the turn."""
        ...

    def question(self, session_id: str, request: CommandRequest, key: str) -> RemoteQuestion | None:
        """Return a question about a command in the running turn; None without a server. `key` names the call."""
        ...
