"""From the pieces of a reply, as they happen to come, to blocks that can be shown (A8). Pure: no I/O."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cfs_agents.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    ContextShortened,
    ContextUpdated,
    FileChanges,
    Finished,
    Retrying,
    RoundStarted,
    Text,
    Thinking,
    TurnUsage,
    Warned,
)
from cfs_agents.llm import Chunk, Reply

Kind = Literal["thinking", "text"]

LONGEST_HELD = 400
"""Characters that wait for a natural break; beyond, a break between two words will do."""

_BREAK = re.compile(r"""\n|[.!?…]["'”’)\]*_]{0,8}[ \t]+|[。！？][”’」』）]{0,8}""")
"""Ends of lines and sentences. A point within a number or a name has no space behind it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What a model says, or says to itself, up to a natural break. All passages together are its words, unchanged."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Void:
    """A reply is asked for again; if some of it was `shown`, that does not count."""

    reason: str
    seconds: float
    shown: bool


Block: TypeAlias = (
    Passage
    | Void
    | CallStarted
    | CallFinished
    | ContextUpdated
    | ContextShortened
    | Warned
    | RoundStarted
    | TurnUsage
    | FileChanges
    | Finished
)
"""What is shown in one go."""


class BlockStream:
    """Takes an agent's events, or a model's chunks and replies, and gives whole blocks.

    Words are held back until a natural break. A call is given once, whether a reply has it, an event, or both.
    """

    def __init__(self) -> None:
        self._kind: Kind = "text"
        self._held = ""
        self._shown = False
        self._called: set[str] = set()

    def feed(self, event: AgentEvent | Chunk | Reply) -> list[Block]:
        """Take the next event; return the blocks that it completes."""
        return list(self._blocks(event))

    def finish(self) -> list[Block]:
        """Give what is held back, as nothing more will come: the agent was stopped, or has failed."""
        return list(self._release())

    def _blocks(self, event: AgentEvent | Chunk | Reply) -> Iterator[Block]:
        match event:
            case Thinking(text):
                yield from self._words("thinking", text)
            case Text(text):
                yield from self._words("text", text)
            case Chunk(text, thinking):
                yield from self._words("thinking", thinking)
                yield from self._words("text", text)
            case Retrying(reason, seconds):
                self._held = ""
                yield Void(reason, seconds, self._shown)
                self._shown = False
            case Reply(message):
                yield from self._release()
                self._begin_reply()
                for call in message.tool_calls:
                    yield from self._call(CallStarted(call))
            case CallStarted():
                yield from self._release()
                yield from self._call(event)
            case RoundStarted():
                yield from self._release()
                self._begin_reply()
                yield event
            case CallFinished() | ContextUpdated() | ContextShortened() | Warned() | TurnUsage():
                yield from self._release()
                yield event
            case FileChanges() | Finished():
                yield from self._release()
                yield event

    def _begin_reply(self) -> None:
        self._shown = False
        self._called.clear()  # ids are told apart within a reply only

    def _call(self, event: CallStarted) -> Iterator[Block]:
        if event.call.id not in self._called:
            self._called.add(event.call.id)
            yield event

    def _words(self, kind: Kind, text: str) -> Iterator[Block]:
        if not text:
            return
        if kind != self._kind:
            yield from self._release()
            self._kind = kind
        self._held += text
        if end := _last_break(self._held):
            yield from self._passage(end)

    def _release(self) -> Iterator[Block]:
        if self._held:
            yield from self._passage(len(self._held))

    def _passage(self, end: int) -> Iterator[Block]:
        text, self._held = self._held[:end], self._held[end:]
        self._shown = True
        yield Passage(self._kind, text)


def _last_break(text: str) -> int:
    """Find where the last break ends; 0 when there is none, and none is needed yet."""
    end = 0
    for found in _BREAK.finditer(text):
        end = found.end()
    if len(text) - end <= LONGEST_HELD:
        return end
    between_words = max(text.rfind(" "), text.rfind("\t")) + 1
    return max(end, between_words) or len(text)
