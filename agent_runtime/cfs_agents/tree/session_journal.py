"""The journal of a sub-agent: its messages and the state of its task, on disk before anything else (B3, B5, B8)."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cfs.api import life_in
from cfs.wire import Message, SessionInfo, ToolCall, Usage
from cfs_agents.base.events import Finished, ToolResult
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.base.threads import to_the_end
from cfs_agents.context import ContextItem, Conversation, ConversationChange
from cfs_agents.loop.recorder import NewContext
from cfs_agents.tree.record import LeaseRecord, SubAgentRecord
from cfs_agents.tree.recorder import ResumePoint
from cfs_agents.tree.session_context import SubSessionContext
from cfs_agents.tree.session_folder import SessionFolder
from cfs_agents.tree.tool_names import REPEATABLE


@dataclass(frozen=True, slots=True)
class StoredSession:
    """The stored state of a session, without the running turn: enough to create the session again.

    `life` distinguishes sessions of one name; None before the first is created.
    """

    messages: Sequence[Message] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    life: str | None = None


_ANOTHER_SESSION = "belongs to another session of this name: the agent takes over the history of the present one"
_REWOUND = "has messages that a rewind of its session has taken back"
_IDENTITY = ("session_id", "agent_id", "agent_name", "system_instruction", "max_turns", "timeout", "budget")


class SessionJournal:
    """Stores one sub-agent, and tracks the required content of its server session.

    `stored` gets each message that is on disk, a result when its files are on the server.
    """

    def __init__(
        self,
        record: SubAgentRecord,
        context: SubSessionContext,
        folder: SessionFolder,
        *,
        stored: Callable[[Message], None],
        language: Language = "en",
    ) -> None:
        self.record = record
        self.adopted = False
        """Whether the stored conversation has been replaced by that of the session."""
        self.current: Callable[[], Conversation] | None = None
        self._messages = context.message_manager
        self._memory = context.session_memory_manager
        self._folder = folder
        self._stored = stored
        self._language: Language = language
        self._saving = asyncio.Lock()
        self._last: str | None = None
        self._unsent: list[Message] = []
        """Calls that are stored together with their beginning."""

    async def save(self, *, wait: bool = True) -> None:
        """Store the sub-agent as it is now; see `SessionFolder.save`."""
        async with self._saving:
            record = self.record
            record.updated_at = time.time()
            record.messages = len(self._messages)
            if self.current is not None:
                record.items = self._memory.dump(self.current())
            status, messages = record.model_dump(mode="json"), self._messages.messages
            rest = record.state == "done"
            await to_the_end(lambda: self._folder.save(status, messages, rest=rest, wait=wait))

    async def add(self, message: Message) -> None:
        """Store a message that is in the context already."""
        await self._keep(message)
        self._stored(message)

    async def _keep(self, message: Message, *, wait: bool = True) -> None:
        self._last = None
        self._messages.add(message)
        await self.save(wait=wait)
        self._send_stored()

    def resume_point(self) -> ResumePoint:
        """Return where the sub-agent goes on. What waits for a person has not happened."""
        record = self.record
        context = self._memory.load(record.items, record.messages)
        begun = set(record.begun) - {record.asking}
        once = any(call.id in begun and call.name not in REPEATABLE for call in context.open_calls)
        return ResumePoint(context, record.begun if once else (), record.broken)

    def session(self) -> StoredSession:
        """Return the stored state of its session, up to the message of the running turn."""
        messages, lease = list(self._messages.messages), self.record.lease
        if lease is not None and (index := self._index_of(lease.content)) is not None:
            messages = messages[:index]
        if messages and messages[-1].role == "user":  # its turn was over when the next one began
            messages.append(Message(role="assistant", content=catalogue(self._language).superseded))
        return StoredSession(messages, self.record.settings, self.record.life)

    def session_opened(self, life: str, settings: Mapping[str, Any]) -> None:
        """Take over the identity and the settings of its session; they are written with the next step."""
        self.record.life, self.record.settings, self.record.gone = life, dict(settings), None

    async def session_gone(self, reason: str) -> None:
        """Store that its session was deleted or renamed."""
        if self.record.gone is None:
            self.record.gone = reason
            await self.save()

    def is_unknown(self, info: SessionInfo) -> bool:
        """Whether this agent, the root of a tree, knows nothing of its session, or the conversation of another one."""
        record = self.record
        if record.parent_id is not None or record.life == life_in(info.etag):
            return False
        return info.origin is not None if record.life is not None else not self._messages

    async def adopt(self, history: Sequence[Message]) -> None:
        """Take over the history of its session. A conversation of another session is put aside."""
        record = self.record
        if self._messages.messages:
            await to_the_end(partial(self._folder.put_messages_aside, _ANOTHER_SESSION))
            fresh = SubAgentRecord(
                **{name: getattr(record, name) for name in _IDENTITY}, state="done", created_at=time.time()
            )
            for name in SubAgentRecord.model_fields:
                setattr(record, name, getattr(fresh, name))
        self._messages.replace_all(history)
        context = self._memory.load((), 0)
        self.current, self.adopted = lambda: context, True
        await self.save()

    async def rewind(self, history: Sequence[Message], version: int) -> None:
        """Continue from the history to which its session was rewound. The later messages are put aside.

        Calls at the end that have no results are left out: they belong to what is undone.
        """
        record = self.record
        await to_the_end(partial(self._folder.put_messages_aside, _REWOUND))
        record.begun, record.asking, record.broken, record.nudges, record.finish = [], "", {}, [], None
        record.rewound = version
        self._messages.replace_all(_without_open_calls(history))
        context = self._memory.load((), 0)
        self.current, self.adopted = lambda: context, True
        await self.save()

    async def turn_retaken(self, lease: LeaseRecord) -> None:
        """Store that the server had lost the turn, and that this lease replaces it."""
        self.record.lease = lease
        await self.save()

    def messages_of_turn(self) -> list[Message]:
        """Return the messages that answer the message of its turn; an answer at the end waits for the turn's end."""
        lease, messages = self.record.lease, self._messages.messages
        if lease is None or (index := self._index_of(lease.content)) is None:
            return []
        answers = list(messages[index + 1 :])
        if answers and answers[-1].role == "assistant" and not answers[-1].tool_calls:
            answers.pop()
        return answers

    def _index_of(self, content: str) -> int | None:
        """Return the index of the last user message with this content."""
        messages = self._messages.messages
        indices = range(len(messages) - 1, -1, -1)
        return next((n for n in indices if messages[n].role == "user" and messages[n].content == content), None)

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Store a message of the user or of the model."""
        record = self.record
        record.begun, record.asking, record.broken = [], "", dict(broken)
        if usage is not None:
            record.rounds += 1
            record.usage += usage
        if item.item_id == self._last:  # the rest of a reply that was cut off
            self._messages.replace_last(item.message)
            await self.save()
            self._stored(item.message)
        elif not broken and any(call.name not in REPEATABLE for call in item.message.tool_calls[:1]):
            self._messages.add(item.message)
            self._unsent.append(item.message)
        else:
            await self.add(item.message)
        self._last = item.item_id

    async def shortened(self, change: ConversationChange) -> None:  # noqa: ARG002 - as the protocol has it
        """Store the shortened conversation."""
        await self.save()

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Store that calls are about to run, if running one of them twice would matter."""
        self.record.begun = [call.id for call in calls]
        if any(call.name not in REPEATABLE for call in calls):
            await self.save()
            self._send_stored()

    def _send_stored(self) -> None:
        """Send the messages that are on disk by now."""
        for message in self._unsent:
            self._stored(message)
        self._unsent.clear()

    async def done(
        self,
        call: ToolCall,
        result: ToolResult,  # noqa: ARG002 - the signature is the protocol's
        item: ContextItem,
        later: Sequence[ToolCall],  # noqa: ARG002
    ) -> NewContext | None:
        """Store a result."""
        self.record.begun = [begun for begun in self.record.begun if begun != call.id]
        await self._keep(item.message, wait=False)
        return None

    def shown(self, item: ContextItem) -> None:
        """Send a result that is on disk."""
        self._stored(item.message)

    async def ended(self, end: Finished) -> None:
        """Do nothing: the sub-agent interprets the end."""


def _without_open_calls(history: Sequence[Message]) -> Sequence[Message]:
    """Return a history up to the calls of tools at its end, if some of them have no result."""
    end = len(history)
    while end and history[end - 1].role == "tool":
        end -= 1
    calls = history[end - 1].tool_calls if end else ()
    return history[: end - 1] if len(calls) > len(history) - end else history
