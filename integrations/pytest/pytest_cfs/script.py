"""What the model of a test says, and what it was asked."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cfs.wire import Message, Settings


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: its text, the thinking before it, calls of tools, and the reason if the turn is to fail after it.

    `calls` are pairs of a tool's name and its arguments.
    """

    text: str = ""
    thinking: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    error: str | None = None

    def pieces(self) -> Iterator[str]:
        """Yield the text word by word, as it is streamed."""
        yield from re.findall(r"\s*\S+|\s+$", self.text)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the model was asked in one turn: the whole conversation, and how to answer it."""

    messages: tuple[Message, ...]
    settings: Settings
    tools: tuple[str, ...] = ()
    json_schema: dict[str, Any] | None = None


Answer = str | Reply | Callable[[Asked], str | Reply]
"""A reply, or a function that makes one of what was asked."""


@dataclass
class Script:
    """The replies that are still to be given, and all that was asked."""

    asked: list[Asked] = field(default_factory=list)
    _replies: list[Answer] = field(default_factory=list)
    _always: Answer | None = None
    _given: int = 0

    def add(self, replies: Sequence[Answer]) -> None:
        """Give these replies, one for each turn."""
        for reply in replies:
            if not (isinstance(reply, str | Reply) or callable(reply)):
                raise TypeError(f"a reply is a text, a Reply or a function, not {reply!r}")
        self._replies += replies
        self._given += len(replies)

    def always(self, reply: Answer) -> None:
        """Give this reply to each turn for which there is no other one."""
        self._always = reply

    @property
    def left(self) -> int:
        """Number of replies that no turn has asked for yet."""
        return len(self._replies)

    def next(self, asked: Asked) -> Reply:
        """Return the reply to the next turn."""
        self.asked.append(asked)
        if self._replies:
            answer = self._replies.pop(0)
        elif self._always is not None:
            answer = self._always
        elif self._given:
            return Reply(error=f"the test has scripted {self._given} replies, and this turn needs one more")
        else:
            answer = " ".join(asked.messages[-1].content.split())
        if callable(answer):
            try:
                answer = answer(asked)
            except Exception as error:  # noqa: BLE001 - the test's own function; the turn has to end
                return Reply(error=f"the script of the test raised {type(error).__name__}: {error}")
        return Reply(answer) if isinstance(answer, str) else answer
