"""From the chunks of a reply to blocks that can be shown (A8). No I/O."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cfs_agents.base.events import (
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
from cfs_agents.loop.model import Chunk, CompleteResponse

Kind = Literal["thinking", "text"]

LONGEST_HELD = 400
"""Characters that are held back for a natural break; with more, a break between two words is enough."""

_BREAK = re.compile(r"""\n|[.!?…]["'”’)\]*_]{0,8}[ \t]+|[。！？][”’」』）]{0,8}""")
"""Ends of lines and sentences. A point within a number or a name is not followed by a space."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Text or thinking of a model up to a natural break. All passages together are its words, unchanged."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class DiscardedReply:
    """A reply failed and is requested again; what was `shown` of it does not count."""

    reason: str
    seconds: float
    shown: bool


Block: TypeAlias = (
    Passage
    | DiscardedReply
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
"""What is shown at once."""


class StreamProcessor:
    """Turns an agent's events, or a model's chunks and replies, into whole blocks.

    Text is held back until a natural break. Each call appears once, also if both a reply and an event contain it.
    """

    def __init__(self) -> None:
        self._kind: Kind = "text"
        self._held = ""
        self._shown = False
        self._called: set[str] = set()

    def feed(self, event: AgentEvent | Chunk | CompleteResponse) -> list[Block]:
        """Process the next event and return the blocks that it completes."""
        return list(self._blocks(event))

    def finish(self) -> list[Block]:
        """Return what is held back; nothing more will come."""
        return list(self._release())

    def _blocks(self, event: AgentEvent | Chunk | CompleteResponse) -> Iterator[Block]:
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
                yield DiscardedReply(reason, seconds, self._shown)
                self._shown = False
            case CompleteResponse(message):
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
        self._called.clear()  # ids are unique within a reply only

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
    """Return the end of the last break; 0 if there is none and none is needed yet."""
    end = 0
    for match in _BREAK.finditer(text):
        end = match.end()
    if len(text) - end <= LONGEST_HELD:
        return end
    between_words = max(text.rfind(" "), text.rfind("\t")) + 1
    return max(end, between_words) or len(text)
