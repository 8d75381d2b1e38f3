"""The messages of one session, with the size and version of the text that shows them (S6, H3)."""

import time
from collections.abc import Iterable

from cfs.transcript import render, render_one
from cfs.wire import Message
from cfs_server.sessions.accounts import Account


class History:
    """A list of messages that knows the size of its transcript without rendering it.

    `version` grows by one with every change, which was at `changed_at`: equal versions are equal texts.
    """

    def __init__(self, account: Account, messages: Iterable[Message] = ()) -> None:
        self._account = account
        self._messages: list[Message] = []
        self._text: str | None = None
        self.size = 0
        self.version = 0
        self._put(messages)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        return tuple(self._messages)

    @property
    def text(self) -> str:
        """The transcript; rendered once per version."""
        if self._text is None:
            self._text = render(self._messages)
        return self._text

    def up_to(self, count: int) -> str:
        """The transcript of the first messages."""
        return self.text if count >= len(self._messages) else render(self._messages[:count])

    def append(self, message: Message) -> int:
        """Add a message; return its index."""
        self._messages.append(message)
        self._changed(_size(message))
        return len(self._messages) - 1

    def replace(self, messages: Iterable[Message]) -> None:
        """Put other messages in the place of all (S14)."""
        self._put(messages)
        self.version += 1

    def release(self) -> None:
        """Free everything: the session is deleted."""
        self._put(())

    def _put(self, messages: Iterable[Message]) -> None:
        self._messages = list(messages)
        self._resized(sum(map(_size, self._messages)) - self.size)

    def _changed(self, growth: int) -> None:
        self._resized(growth)
        self.version += 1

    def _resized(self, growth: int) -> None:
        self.size += growth
        self.changed_at = time.time()
        self._account.add(size=growth)
        self._text = None

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the size kept is the size of the text."""
        if self.size != len(self.text.encode()):
            raise AssertionError(f"size {self.size} of a transcript of {len(self.text.encode())} bytes")


def _size(message: Message) -> int:
    return len(render_one(message).encode()) + 1
