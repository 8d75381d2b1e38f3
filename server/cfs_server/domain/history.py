"""The messages of one session, with the size and version of their transcript (S6, H3)."""

import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Self

from cfs.contract.transcript import render
from cfs.errors import ContextTooLong
from cfs.wire import Message, Settings
from cfs_server.domain.loop_bridge import AT_ONCE_BYTES, LoopBridge, aside
from cfs_server.domain.message_sizes import MESSAGE_COST, cost_of
from cfs_server.domain.quotas import StorageUsage
from cfs_server.domain.topics import topic_of
from cfs_server.domain.transcripts import SizedMessages, transcript_size
from cfs_server.engine.contract.fitting import TOKEN_CHARACTERS, exchanges, leading_systems

_ATTEMPTS = 5
"""Maximum number of attempts to render a transcript that changes all the time."""


_ERROR = "[Error: "
_SUMMARY = "Summary of the conversation before this point:\n"


def error_reply(reason: str) -> Message:
    """Return the reply of a failed turn (S5)."""
    return Message(role="assistant", content=f"{_ERROR}{reason}]")


def is_error_reply(message: Message) -> bool:
    """Return whether a message is the error of a failed turn. Prompts do not contain it (S5)."""
    content = message.content
    return message.role == "assistant" and content.startswith(_ERROR) and content.endswith("]")


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a history in prompts: the leading system messages, and the messages from `cut` on.

    `summary` replaces the messages before the cut. `oversized` are messages that are too long for any prompt.
    """

    cut: int = 0
    summary: str = ""
    oversized: frozenset[int] = frozenset()


_WHOLE = Window()


@dataclass(frozen=True, slots=True)
class HistoryHead:
    """A history without its messages.

    `begins_at` is the record that contains the first messages. `since` is the version and the number of messages when
    all messages were replaced. `leading` is the number of system messages at the beginning, `calls_tools` whether the
    newest message calls tools, `failed` whether it is the error of a failed turn. `rewound` is the version of the last
    rewind.
    """

    count: int
    size: int
    cost: int
    version: int
    changed_at: float
    since: tuple[int, int]
    window: Window = _WHOLE
    begins_at: int = 0
    leading: int = 0
    calls_tools: bool = False
    topic: str | None = None
    failed: bool = False
    rewound: int = 0


class HistoryNotLoaded(Exception):
    """The messages of a history are used but not in memory: a defect in the server."""


class History:
    """A list of messages that knows the size of its transcript without rendering it.

    `version` grows by one with each change; `changed_at` is the time of the last one. Equal versions have equal texts.
    A change adds one message or replaces all.

    The `window` is the part in prompts. It is reset when the messages are replaced.

    A history can be unloaded: the messages up to then leave the memory, and all other values stay. Messages may be
    added to it and replaced. What uses messages that are not in memory raises `HistoryNotLoaded`; `HistoryCache` loads
    them before.
    """

    __slots__ = (
        "_absent",
        "_account",
        "_messages",
        "_present",
        "_rendered",
        "_rendered_size",
        "_text",
        "_times",
        "calls_tools",
        "changed_at",
        "cost",
        "failed",
        "leading",
        "rewound",
        "since",
        "size",
        "topic",
        "version",
        "window",
    )

    def __init__(self, account: StorageUsage, history: SizedMessages | None = None, at: float | None = None) -> None:
        self._account = account
        self._absent = 0
        """The number of messages, from the first one on, that are not in memory."""
        self._messages: list[Message] = []
        self._times = array("d")
        """When each message in memory was added, in seconds since the epoch."""
        self._present = 0
        """The memory of the messages that are in memory."""
        self.size = self.cost = 0
        self.version = self.rewound = 0
        self.topic: str | None = ""
        """The first line that a user has written; empty without one, None if the head of the history lacks it."""
        self._put(history or SizedMessages(), time.time() if at is None else at)

    @classmethod
    def restored(cls, account: StorageUsage, head: HistoryHead) -> Self:
        """Return the history of a stored head, unloaded."""
        history = cls(account, at=head.changed_at)
        history._resized(head.size, head.cost, head.changed_at)
        history._absent, history.version, history.since = head.count, head.version, head.since
        history.window, history.leading, history.calls_tools = head.window, head.leading, head.calls_tools
        history.topic, history.failed, history.rewound = head.topic, head.failed, head.rewound
        return history

    def head(self, begins_at: int) -> HistoryHead:
        """Return the history without its messages, which begin at a record."""
        return HistoryHead(
            len(self),
            self.size,
            self.cost,
            self.version,
            self.changed_at,
            self.since,
            self.window,
            begins_at,
            self.leading,
            self.calls_tools,
            self.topic,
            self.failed,
            self.rewound,
        )

    def __len__(self) -> int:
        return self._absent + len(self._messages)

    @property
    def loaded(self) -> bool:
        """Whether all messages are in memory."""
        return not self._absent

    @property
    def memory(self) -> int:
        """The memory in bytes that unloading frees: of the messages in memory, and of the rendered transcript."""
        return self._present + (sys.getsizeof(self._text) if self._text else 0)

    def unload(self) -> None:
        """Remove the messages from memory. The caller has made sure that they can be loaded again."""
        self._absent, self._present, self._messages, self._times = len(self), 0, [], array("d")
        self._text, self._rendered, self._rendered_size = "", 0, 0

    def load(self, messages: Sequence[tuple[Message, float]], since: tuple[int, int]) -> None:
        """Add the messages that are not in memory, each with its time, read when `since` had this value.

        Does nothing if all messages have been replaced or loaded in the meantime. Raises `HistoryNotLoaded` if some are
        missing.
        """
        if not self._absent or self.since != since:
            return
        if len(messages) < self._absent:
            raise HistoryNotLoaded(f"{len(messages)} of {self._absent} messages have been found")
        self._messages[:0] = [message for message, _ in messages[: self._absent]]
        self._times[:0] = array("d", [at for _, at in messages[: self._absent]])
        self._absent, self._present = 0, self.cost
        self.topic = topic_of(self._messages)  # an older version may have stored another one, or none
        self.failed = is_error_reply(self._messages[-1])  # which an older version has not stored

    def require_loaded(self) -> None:
        """Raise `HistoryNotLoaded` unless all messages are in memory."""
        if self._absent:
            raise HistoryNotLoaded(f"{self._absent} messages of a history are not in memory")

    @property
    def _all(self) -> list[Message]:
        self.require_loaded()
        return self._messages

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        return tuple(self._all)

    @property
    def times(self) -> tuple[float, ...]:
        """When each message was added, in seconds since the epoch."""
        self.require_loaded()
        return tuple(self._times)

    def prompt(self, window: Window) -> tuple[Message, ...]:
        """Return the messages of a prompt (S8): those of a window, without error replies."""
        first = self._all[: self.leading]
        remaining = islice(enumerate(self._all), max(window.cut, len(first)), None)
        messages = [message for at, message in remaining if at not in window.oversized and not is_error_reply(message)]
        if window.summary:
            before = f"{first.pop().content}\n\n" if first else ""
            first.append(Message(role="system", content=f"{before}{_SUMMARY}{window.summary}"))
        return (*first, *messages)

    def exchanges(self, window: Window) -> list[int]:
        """Return where the exchanges of a window begin, without those that are too long for any prompt."""
        starts = exchanges(self._all, max(window.cut, self.leading))
        return [start for start in starts if start not in window.oversized]

    def newest(self, window: Window, count: int) -> Window:
        """Cut a window to its newest exchanges: so many, but one at least, and fewer than it has."""
        starts = self.exchanges(window)
        return replace(window, cut=starts[-max(1, min(count, len(starts) - 1))])

    def leaving(self, window: Window, cut: int, characters: int) -> list[Message]:
        """Return the newest messages that leave the prompts at a new cut, up to this many characters."""
        messages: list[Message] = []
        for at in range(cut - 1, max(window.cut, self.leading) - 1, -1):
            message = self._all[at]
            characters -= len(message.content)
            if characters < 0:
                break
            if at not in window.oversized and not is_error_reply(message):
                messages.append(message)
        return messages[::-1]

    def count_between(self, window: Window, cut: int) -> int:
        """Count the messages that leave the prompts at a new cut."""
        return cut - max(window.cut, self.leading)

    def bounded(self, window: Window, max_messages: int) -> Window:
        """Cut a window to the maximum number of messages of a prompt, without reading the others."""
        begin = len(self) - max_messages
        if begin <= window.cut or begin <= self.leading:
            return window
        cut = next((at for at in range(begin, len(self)) if self._all[at].role == "user"), begin)
        return replace(window, cut=cut)

    @property
    def last(self) -> Message | None:
        """The newest message."""
        return self._all[-1] if self._all else None

    @property
    def text(self) -> str:
        """The transcript. Each message is rendered once, at the first read."""
        if self._rendered < len(self._all):
            self._keep_text(self._text + render(self._all[self._rendered :]))
        return self._text

    @property
    def unrendered(self) -> int:
        """Return the bytes of the transcript that are not rendered yet."""
        return self.size - self._rendered_size

    def rendering(self) -> Callable[[], str]:
        """Return a function that renders the current transcript in any thread. Pass its result to `keep`."""
        text, new = self._text, self._all[self._rendered :]
        return lambda: text + render(new)

    def keep(self, version: int, text: str) -> bool:
        """Store the rendered transcript if its version is still current. Return whether it is."""
        if version == self.version:
            self._keep_text(text)
        return version == self.version

    def _keep_text(self, text: str) -> None:
        self._text, self._rendered, self._rendered_size = text, len(self._all), self.size

    def up_to(self, count: int) -> str:
        """Return the transcript of the first messages."""
        return self.text if count >= len(self) else render(self._all[:count])

    def size_at(self, version: int) -> int | None:
        """Return the size of the transcript at an earlier version.

        None if the current text does not begin with that version, because all messages were replaced since.
        """
        since, count = self.since
        if not since <= version <= self.version:
            return None
        return (
            self.size
            if version == self.version
            else self.size - sum(map(transcript_size, self._all[count + version - since :]))
        )

    def beyond(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the messages after this history; None if they do not begin with it.

        White space around contents is ignored. Thinking may be missing, because most programs do not store it.
        """
        return messages[len(self) :] if self.common(messages) == len(self) else None

    def common(self, messages: Sequence[Message]) -> int:
        """Return the number of first messages that are the same here and there, by the rule of `beyond`."""
        return sum(1 for _ in takewhile(bool, map(_alike, self._all, messages)))

    def append(self, message: Message, at: float) -> int:
        """Add a message at a time in seconds since the epoch. Return its index."""
        cost = cost_of(message)
        if self.leading == len(self) and message.role == "system":
            self.leading += 1
        self.calls_tools, self.failed = bool(message.tool_calls), is_error_reply(message)
        if self.topic == "":
            self.topic = topic_of([message])
        self._messages.append(message)
        self._times.append(at)
        self._present += cost
        self._resized(transcript_size(message), cost, at)
        self.version += 1
        return len(self) - 1

    def replace(self, history: SizedMessages, at: float, *, rewinds: bool = False) -> None:
        """Replace all messages (S14), by those of an earlier version if it `rewinds`."""
        self.version += 1
        if rewinds:
            self.rewound = self.version
        self._put(history, at)

    def extended(self, messages: Sequence[Message]) -> SizedMessages:
        """Return this history with more messages after it."""
        more = SizedMessages.of(messages)
        return SizedMessages((*self._all, *more.messages), self.size + more.size, self.cost + more.cost, self.times)

    def until(self, end: int | None) -> SizedMessages:
        """Return the first messages; all without `end`."""
        if end is None or end >= len(self):
            return SizedMessages(self.messages, self.size, self.cost, self.times)
        return replace(SizedMessages.of(self._all[:end]), times=self.times[:end])

    def release(self, at: float) -> None:
        """Free all memory: the session is deleted."""
        self._put(SizedMessages(), at)

    def _put(self, history: SizedMessages, at: float) -> None:
        self._messages = list(history.messages)
        self._times = array("d", history.times_from(at))
        self._absent, self._present = 0, history.cost
        self.window = _WHOLE
        self._text, self._rendered, self._rendered_size = "", 0, 0
        self.since = (self.version, len(self._messages))
        self.leading, self.topic = leading_systems(self._messages), topic_of(self._messages)
        self.calls_tools = bool(self._messages) and bool(self._messages[-1].tool_calls)
        self.failed = bool(self._messages) and is_error_reply(self._messages[-1])
        self._resized(history.size - self.size, history.cost - self.cost, at)

    def _resized(self, growth: int, cost: int, at: float) -> None:
        self.size += growth
        self.cost += cost
        self.changed_at = at
        self._account.add(size=cost)

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the text, its size and the sizes of all versions are correct."""
        if self.cost < len(self) * MESSAGE_COST:
            raise AssertionError(f"{len(self)} messages cost {self.cost} bytes")
        if len(self) - self.since[1] != self.version - self.since[0]:
            raise AssertionError(f"{len(self)} messages at version {self.version}, and {self.since[1]} before")
        if len(self._times) != len(self._messages):
            raise AssertionError(f"{len(self._messages)} messages in memory have {len(self._times)} times")
        if bool(self._present) != bool(self._messages) or not self._present <= self.cost:
            raise AssertionError(f"{self._present} of {self.cost} bytes are counted for the messages in memory")
        if not self.loaded:
            return
        if self.text != render(self._messages):
            raise AssertionError("the text kept is not that of the messages")
        if self.size != len(self.text.encode()):
            raise AssertionError(f"size {self.size} of a transcript of {len(self.text.encode())} bytes")
        if self.topic != topic_of(self._messages):
            raise AssertionError(f"the topic is not {self.topic!r}")
        newest = self._messages[-1:]
        if (self.leading, self.calls_tools, self.failed) != (
            leading_systems(self._messages),
            any(message.tool_calls for message in newest),
            any(map(is_error_reply, newest)),
        ):
            raise AssertionError("the values that stay without the messages are wrong")


async def rendered(history: History, owner: str) -> None:
    """Render the transcript, in a thread if it is long.

    After several attempts, a transcript that keeps changing is rendered on the loop.
    """
    for _ in range(_ATTEMPTS):
        if history.unrendered <= AT_ONCE_BYTES:
            return
        version = history.version
        history.keep(version, await aside(history.unrendered, owner, history.rendering()))


def rendered_in_thread(history: History, on_loop: LoopBridge) -> None:
    """Do the same for a call from a thread."""
    for _ in range(_ATTEMPTS):
        left, version, render_now = on_loop(lambda: (history.unrendered, history.version, history.rendering()))
        if left <= AT_ONCE_BYTES or on_loop(partial(history.keep, version, render_now())):
            return


def _alike(stored: Message, sent: Message) -> bool:
    if (stored.role, stored.content, stored.thinking) == (sent.role, sent.content, sent.thinking) and stored == sent:
        return True
    if stored.role != sent.role:
        return False
    stripped = stored.model_copy(
        update={"content": stored.content.strip(), "thinking": sent.thinking and stored.thinking}
    )
    return stripped == sent.model_copy(update={"content": sent.content.strip()})


def first_window(history: History, settings: Settings, context_tokens: int) -> tuple[Window, int | None]:
    """Return the first window to try, and about how many tokens it leaves out, if any.

    A prompt has at most as many messages as the context has tokens (`context_tokens`, 0 if unknown). Older ones are
    not read.
    """
    if settings.overflow == "error":
        if 0 < context_tokens < len(history):
            raise ContextTooLong(
                f"the prompt has {len(history)} messages; the model's context holds {context_tokens} tokens"
            )
        return Window(), None
    window = history.window if settings.overflow == "summarize" else replace(history.window, summary="")
    bounded = history.bounded(window, context_tokens) if context_tokens else window
    return bounded, None if bounded is window else tokens_between(history, window, bounded.cut)


def tokens_between(history: History, window: Window, cut: int) -> int:
    """Estimate the tokens between two cuts, as if all messages had the same length."""
    return history.size * history.count_between(window, cut) // len(history) // TOKEN_CHARACTERS
