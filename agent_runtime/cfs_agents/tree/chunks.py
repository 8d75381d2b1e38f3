"""The output of a tree of agents: one stream of chunks (B3)."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from cfs.wire import Role, ToolCall

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


class ChunkStream:
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
