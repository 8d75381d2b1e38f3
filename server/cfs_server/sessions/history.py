"""The messages of one session, with the size and version of the text that shows them (S6, H3)."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from cfs.transcript import render, render_one
from cfs.wire import Message
from cfs_server.engine.fitting import exchanges, leading_systems
from cfs_server.sessions.accounts import Account

_ERROR = "[Error: "
_SUMMARY = "Summary of the conversation before this point:\n"


def error_reply(reason: str) -> Message:
    """Make the reply of a turn that failed (S5)."""
    return Message(role="assistant", content=f"{_ERROR}{reason}]")


def is_error_reply(message: Message) -> bool:
    """Whether a message only says that its turn failed: no prompt has it (S5)."""
    content = message.content
    return message.role == "assistant" and content.startswith(_ERROR) and content.endswith("]")


@dataclass(frozen=True, slots=True)
class Window:
    """What of a history is in prompts: the leading system messages, and what follows the message `cut`.

    `summary` stands for what is before the cut; `oversized` are messages that no prompt can hold.
    """

    cut: int = 0
    summary: str = ""
    oversized: frozenset[int] = frozenset()


class History:
    """A list of messages that knows the size of its transcript without rendering it.

    `version` grows by one with every change, which was at `changed_at`: equal versions are equal texts. A change adds
    one message, or puts others in the place of all.

    The `window` is what prompts have of it; when the messages are replaced, that is everything again.
    """

    def __init__(self, account: Account, messages: Iterable[Message] = ()) -> None:
        self._account = account
        self._messages: list[Message] = []
        self._text, self._rendered = "", 0
        self.size = 0
        self.version = 0
        self.window = Window()
        self._put(messages)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        return tuple(self._messages)

    def prompt(self, window: Window) -> tuple[Message, ...]:
        """The messages of a prompt (S8): those of a window, without replies that are errors."""
        first = self._messages[: leading_systems(self._messages)]
        kept = islice(enumerate(self._messages), max(window.cut, len(first)), None)
        said = [message for at, message in kept if at not in window.oversized and not is_error_reply(message)]
        if window.summary:
            before = f"{first.pop().content}\n\n" if first else ""
            first.append(Message(role="system", content=f"{before}{_SUMMARY}{window.summary}"))
        return (*first, *said)

    def exchanges(self, window: Window) -> list[int]:
        """Say where the exchanges of a window begin, but for those that no prompt can hold."""
        starts = exchanges(self._messages, max(window.cut, leading_systems(self._messages)))
        return [start for start in starts if start not in window.oversized]

    def leaving(self, window: Window, cut: int, characters: int) -> list[Message]:
        """List what leaves the prompts when a window is cut anew: its newest messages, of so much text."""
        found: list[Message] = []
        for at in range(cut - 1, max(window.cut, leading_systems(self._messages)) - 1, -1):
            message = self._messages[at]
            characters -= len(message.content)
            if characters < 0:
                break
            if at not in window.oversized and not is_error_reply(message):
                found.append(message)
        return found[::-1]

    def count_between(self, window: Window, cut: int) -> int:
        """Count the messages that leave the prompts when a window is cut anew."""
        return cut - max(window.cut, leading_systems(self._messages))

    def bounded(self, window: Window, most: int) -> Window:
        """Cut a window so that it has no more messages than a prompt can: the rest is not even looked at."""
        begin = len(self._messages) - most
        if begin <= window.cut or begin <= leading_systems(self._messages):
            return window
        cut = next((at for at in range(begin, len(self._messages)) if self._messages[at].role == "user"), begin)
        return replace(window, cut=cut)

    def take_window(self, other: "History") -> None:
        """Let prompts begin where those of another history do, of which this one is a copy."""
        if other.window.cut < len(self._messages):
            self.window = other.window

    @property
    def last(self) -> Message | None:
        """The newest message."""
        return self._messages[-1] if self._messages else None

    @property
    def text(self) -> str:
        """The transcript; each message is rendered once, when somebody reads it first."""
        if self._rendered < len(self._messages):
            self._text += render(self._messages[self._rendered :])
            self._rendered = len(self._messages)
        return self._text

    def up_to(self, count: int) -> str:
        """The transcript of the first messages."""
        return self.text if count >= len(self._messages) else render(self._messages[:count])

    def size_at(self, version: int) -> int | None:
        """How much of the transcript was there at an earlier version.

        None for a version that the present text does not begin with: one before all messages were replaced.
        """
        since, count = self._since
        if not since <= version <= self.version:
            return None
        return self.size - sum(map(_size, self._messages[count + version - since :]))

    def beyond(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return what some messages have beyond this history; None when they do not begin with it.

        White space around a content is the writer's affair, and thinking may be left out: most programs do not keep it.
        """
        count = len(self._messages)
        if count > len(messages) or not all(map(_alike, self._messages, messages)):
            return None
        return messages[count:]

    def append(self, message: Message) -> int:
        """Add a message; return its index."""
        self._messages.append(message)
        self._changed(_size(message))
        return len(self._messages) - 1

    def replace(self, messages: Iterable[Message]) -> None:
        """Put other messages in the place of all (S14)."""
        self.version += 1
        self._put(messages)

    def release(self) -> None:
        """Free everything: the session is deleted."""
        self._put(())

    def _put(self, messages: Iterable[Message]) -> None:
        self._messages = list(messages)
        self.window = Window()
        self._text, self._rendered = "", 0
        self._since = (self.version, len(self._messages))
        self._resized(sum(map(_size, self._messages)) - self.size)

    def _changed(self, growth: int) -> None:
        self._resized(growth)
        self.version += 1

    def _resized(self, growth: int) -> None:
        self.size += growth
        self.changed_at = time.time()
        self._account.add(size=growth)

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless what is kept is true: the text, its size, and each version a message more."""
        if self.text != render(self._messages):
            raise AssertionError("the text kept is not that of the messages")
        if self.size != len(self.text.encode()):
            raise AssertionError(f"size {self.size} of a transcript of {len(self.text.encode())} bytes")
        if len(self) - self._since[1] != self.version - self._since[0]:
            raise AssertionError(f"{len(self)} messages at version {self.version}, and {self._since[1]} before")


def _alike(own: Message, given: Message) -> bool:
    if own == given:
        return True
    known = own.model_copy(update={"content": own.content.strip(), "thinking": given.thinking and own.thinking})
    return known == given.model_copy(update={"content": given.content.strip()})


def _size(message: Message) -> int:
    return len(render_one(message).encode()) + 1
