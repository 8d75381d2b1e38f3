"""The inbox of a sub-agent: messages of other agents, and newer messages of its session (B3, B8)."""

import asyncio
from collections.abc import Collection, Iterator

from cfs_agents.base.messages import Language, catalogue
from cfs_agents.tree.output import TurnOutput
from cfs_agents.tree.record import InboxMessage, SubAgentRecord
from cfs_agents.tree.session_backend import LostCallback, SessionBackend
from cfs_agents.tree.session_journal import SessionJournal


class Inbox:
    """What reaches one sub-agent. Messages of agents are in its record; those of its session are on the server.

    `wakeup` is set when something has come that the agent may wait for.
    """

    def __init__(
        self,
        record: SubAgentRecord,
        journal: SessionJournal,
        output: TurnOutput,
        backend: SessionBackend,
        on_lost: LostCallback,
        language: Language,
    ) -> None:
        self.wakeup = asyncio.Event()
        self._record = record
        self._journal = journal
        self._output = output
        self._backend = backend
        self._on_lost = on_lost
        self._say = catalogue(language)

    async def deliver(self, message: InboxMessage) -> None:
        """Put a message into the inbox, on disk too."""
        if self._record.deliver(message):
            await self._journal.save()
            self.wakeup.set()

    async def has_message(self) -> bool:
        """Whether a message has arrived; the notification that a child is done does not count."""
        if any(not message.is_notification for message in self._record.inbox):
            return True
        return await self._backend.is_waiting(self._record.session_id)

    def remove_notifications(self, sender: str) -> None:
        """Remove the notifications that an agent is done."""
        messages = self._record.inbox
        messages[:] = [message for message in messages if not (message.is_notification and message.sender == sender)]

    def remove_texts(self, texts: Collection[str]) -> None:
        """Remove the messages that the conversation has already."""
        self._record.inbox = [message for message in self._record.inbox if self._text_of(message) not in texts]

    async def next_turn(self) -> str | None:
        """Return the message that waits in the session, and answer it from now on; None if there is none.

        The present turn ends, and the one of the message is claimed.
        """
        if not await self._backend.is_waiting(self._record.session_id):
            return None
        await self._output.end_turn(self._say.superseded)
        turn = await self._backend.next(self._record.session_id, self._on_lost)
        if turn is not None:
            self._output.begin(turn)
        self._record.lease = self._output.lease
        return None if turn is None else turn.content

    def take(self, *, notifications: bool) -> Iterator[str]:
        """Take the messages of other agents out, one after the other, and yield their texts."""
        for message in [message for message in self._record.inbox if notifications or not message.is_notification]:
            self._record.inbox.remove(message)
            yield self._text_of(message)

    def _text_of(self, message: InboxMessage) -> str:
        if message.is_notification:
            return self._say.child_done.format(message.content)
        return self._say.inbox_message.format(message.sender, message.content)
