"""The output of a sub-agent: to its session on the server, and to the readers of the tree's chunks (B3, B5)."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

from cfs.errors import CfsError
from cfs.wire import AgentWork, Message, Role, ToolCall, Usage
from cfs_agents.base.events import AgentEvent, CallFinished, CallStarted, Retrying, Text, Thinking
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import Language
from cfs_agents.guards.report import Report
from cfs_agents.loop.retries import is_outage
from cfs_agents.tree.record import LeaseRecord
from cfs_agents.tree.session_backend import ClaimedTurn, TurnLease

_log = get_logger(__name__)

ChunkKind = Literal["message", "text", "thinking", "call", "result", "started", "ended"]
"""A whole message of the user or of another agent; a piece of a reply or of its thinking; a call; its result; and the
beginning and the end of an agent's work, whose content is then its report."""


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """A piece of the output of one agent of the tree, as it happens.

    `number` counts the chunks of its session from 1, without gaps, so that a reader of many can put each in order.
    """

    session_id: str
    agent_name: str
    role: Role
    content: str = ""
    kind: ChunkKind = "text"
    number: int = 0
    call: ToolCall | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChunkQueue:
    """Brings the chunks of all agents to one reader, in the order in which they were sent."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[MessageChunk | None] = asyncio.Queue()
        self._numbers: Counter[str] = Counter()

    def send(
        self,
        session_id: str,
        agent_name: str,
        kind: ChunkKind,
        role: Role = "assistant",
        content: str = "",
        *,
        call: ToolCall | None = None,
        tool_call_id: str | None = None,
        name: str | None = None,
    ) -> None:
        """Add a chunk; its number is the next one of its session."""
        self._numbers[session_id] += 1
        number = self._numbers[session_id]
        self._queue.put_nowait(
            MessageChunk(session_id, agent_name, role, content, kind, number, call, tool_call_id, name)
        )

    def clear(self) -> None:
        """Discard the unread chunks, because the reader has left."""
        while not self._queue.empty():
            self._queue.get_nowait()

    def close(self) -> None:
        """End the stream."""
        self._queue.put_nowait(None)

    async def chunks(self) -> AsyncGenerator[MessageChunk, None]:
        """Yield the chunks until the stream is closed."""
        while (chunk := await self._queue.get()) is not None:
            yield chunk


class NoLease:
    """A turn that nothing is sent to: between two turns, and where there is no server."""

    record: LeaseRecord | None = None

    def text(self, piece: str) -> None:
        """Do nothing."""

    def message(self, message: Message) -> None:
        """Do nothing."""

    def work(self, work: AgentWork) -> None:
        """Do nothing."""

    async def finish(self, reply: str, usage: Usage, *, error: str | None = None) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class TurnOutput:
    """Sends a sub-agent's output to its session on the server and to the readers of the tree's chunks (B3, B5).

    Only the end of a turn waits for the server.
    """

    def __init__(self, chunks: ChunkQueue, session_id: str, agent_name: str) -> None:
        self._chunks = chunks
        self._session_id = session_id
        self._agent_name = agent_name
        self._lease: TurnLease = NoLease()
        self._given: str | None = None
        self._answer: Message | None = None
        self._shown = ""
        """The sent part of the present reply, including parts of a failed attempt."""
        self._reply, self._differs = "", False

    @property
    def lease(self) -> LeaseRecord | None:
        """The turn of the server, if there is one."""
        return self._lease.record

    def begin(self, turn: ClaimedTurn) -> None:
        """Write to this turn from now on; the session has its message already."""
        self._lease, self._answer = turn.lease, None
        self._given = turn.content if turn.lease.record is not None else None

    def message(self, message: Message) -> None:
        """Send a message that is on disk. An answer waits: it may be the end of the turn, which sends it."""
        self._shown, self._reply, self._differs = "", "", False
        prompt = self._given if message.role == "user" else None
        if message.role == "user":
            self.chunk("message", "user", content=message.content)
            self._given = None
        if prompt == message.content:
            return
        if not (self._answer is not None and message.content.startswith(self._answer.content)):
            self._send_answer()  # else it is the same answer, continued
        if message.role == "assistant" and not message.tool_calls:
            self._answer = message
        else:
            self._lease.message(message)

    def work(self, work: AgentWork) -> None:
        """Send what the agent says of its work."""
        self._lease.work(work)

    def event(self, event: AgentEvent) -> None:
        """Send an event of the agent's loop."""
        match event:
            case Text(text):
                self._text(text)
            case Retrying():
                self._reply, self._differs = "", False
            case Thinking(text):
                self.chunk("thinking", content=text)
            case CallStarted(call):
                self.chunk("call", call=call, name=call.name)
            case CallFinished(call, result):
                self.chunk("result", "tool", content=result.text, tool_call_id=call.id, name=call.name)

    def _text(self, text: str) -> None:
        """Send a piece of a reply. If the reply was requested again, nothing is sent twice."""
        self._reply += text
        if self._differs:
            self.chunk("text", content=text)
        elif self._reply.startswith(self._shown):
            new, self._shown = self._reply[len(self._shown) :], self._reply
            self._lease.text(new)
            self.chunk("text", content=new)
        elif not self._shown.startswith(self._reply):  # another reply: the session shows it when it is whole
            self._differs = True
            self.chunk("text", content=f"\n{self._reply}")

    def chunk(self, kind: ChunkKind, role: Any = "assistant", **parts: Any) -> None:
        """Send a chunk to the readers of the tree."""
        self._chunks.send(self._session_id, self._agent_name, kind, role, **parts)

    async def end_turn(self, reply: str) -> None:
        """End the turn, as another one follows."""
        self._send_answer()
        lease, self._lease = self._lease, NoLease()
        await lease.finish(reply, Usage())

    async def finish(self, report: Report, language: Language) -> None:
        """End the turn with the report; raises the error of an outage. Other errors are logged: the report is valid."""
        lease, self._lease = self._lease, NoLease()
        reply = report.summary if report.ok else report.text(language)
        answer, self._answer = self._answer, None
        if answer is not None and answer.content != reply:
            lease.message(answer)
        error = None
        if report.status in ("failed", "cancelled"):
            error = "; ".join(report.reasons) or report.summary or report.status
        try:
            await lease.finish(reply, report.usage, error=error)
        except CfsError as problem:
            if is_outage(problem):
                raise
            _log.warning("sub_agent.turn_not_finished", session=self._session_id, reason=str(problem))
        finally:
            await lease.close()

    async def close(self) -> None:
        """Stop writing to the turn without ending it: another process will continue it."""
        lease, self._lease = self._lease, NoLease()
        await lease.close()

    def _send_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._lease.message(answer)
