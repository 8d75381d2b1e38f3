"""A history without its messages goes on counting, and is the same when they are back (H3, H7)."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cfs.wire import Message, ToolCall
from cfs_server.domain.history import History, HistoryNotLoaded, Window
from cfs_server.domain.quotas import Quota, StorageUsage
from cfs_server.domain.transcripts import SizedMessages

MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant"]),
    content=st.sampled_from(["", "hi", "Grüße 你好", "[Error: no]", "User: x\nAssistant: y", "x" * 500]),
    tool_calls=st.sampled_from([(), (ToolCall(id="c", name="look", arguments={"at": [1, "two"]}),)]),
)
WINDOW = Window(cut=1, summary="so far", oversized=frozenset({2}))


def reads(history: History) -> dict[str, Any]:
    """Everything that needs the messages."""
    count = len(history)
    return {
        "messages": history.messages,
        "times": history.times,
        "last": history.last,
        "text": history.text,
        "text_up_to": [history.up_to(at) for at in range(count + 1)],
        "prompt": [history.prompt(window) for window in (Window(), WINDOW)],
        "exchanges": history.exchanges(WINDOW),
        "leaving": history.leaving(Window(), count, 100),
        "bounded": history.bounded(Window(), 2),
        "sizes": [history.size_at(version) for version in range(history.version + 2)],
        "beyond": [
            history.beyond(history.messages),
            history.beyond([*history.messages, Message(role="user", content="")]),
        ],
        "until": [history.until(at) for at in range(count + 1)],
    }


def stored(history: History) -> list[tuple[Message, float]]:
    """The messages as a store gives them."""
    return list(zip(history.messages, history.times, strict=True))


def values(history: History) -> dict[str, Any]:
    """Everything that is known without the messages."""
    return {
        "head": history.head(7),
        "count": len(history),
        "between": history.count_between(WINDOW, len(history)),
        "size_now": history.size_at(history.version),
    }


class UnloadMachine(RuleBasedStateMachine):
    """Changes two histories in the same way, and unloads and loads one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts = [StorageUsage("one", Quota()), StorageUsage("two", Quota())]
        self.plain, self.other = [History(account, at=1.0) for account in self.accounts]
        self.readings: list[tuple[list[tuple[Message, float]], tuple[int, int]]] = []

    @property
    def both(self) -> tuple[History, History]:
        return self.plain, self.other

    @rule(message=MESSAGES, at=st.floats(1, 9))
    def append(self, message: Message, at: float) -> None:
        assert len({history.append(message, at) for history in self.both}) == 1

    @rule(messages=st.lists(MESSAGES, max_size=4), at=st.floats(1, 9))
    def replace(self, messages: list[Message], at: float) -> None:
        for history in self.both:
            history.replace(SizedMessages.of(messages), at)

    @rule()
    def unload(self) -> None:
        self.other.unload()
        assert self.other.memory == 0

    @rule()
    def restart(self) -> None:
        """A new process knows only the head."""
        self.accounts[1].add(size=-self.other.cost)
        self.other = History.restored(self.accounts[1], self.other.head(0))
        self.readings.clear()

    @rule()
    def begin_to_read(self) -> None:
        """What is read now may come late."""
        self.readings.append((stored(self.plain), self.other.since))

    @rule(data=st.data())
    def finish_reading(self, data: st.DataObject) -> None:
        if self.readings:
            messages, since = self.readings.pop(data.draw(st.integers(0, len(self.readings) - 1)))
            if since != self.other.since or len(messages) >= len(self.other) - len(self.other._messages):
                self.other.load(messages, since)

    @rule()
    def load(self) -> None:
        self.other.load(stored(self.plain), self.other.since)
        assert self.other.loaded

    @invariant()
    def equal(self) -> None:
        assert values(self.other) == values(self.plain)
        assert self.accounts[0].bytes == self.accounts[1].bytes
        if self.other.loaded:
            assert reads(self.other) == reads(self.plain)
            return
        with pytest.raises(HistoryNotLoaded):
            self.other.messages  # noqa: B018

    def teardown(self) -> None:
        for history in self.both:
            history.check_integrity()
            history.release(2.0)
        assert [account.bytes for account in self.accounts] == [0, 0]


TestUnloading = UnloadMachine.TestCase
TestUnloading.settings = settings(stateful_step_count=25)


@pytest.mark.parametrize("name", ["messages", "last", "text"])
def test_what_needs_messages_that_are_not_in_memory_says_so(name: str) -> None:
    history = History(StorageUsage("me", Quota()), SizedMessages.of([Message(role="user", content="hi")]))
    history.unload()
    history.append(Message(role="user", content="there"), 1.0)
    with pytest.raises(HistoryNotLoaded, match="1 messages"):
        getattr(history, name)


def test_a_source_that_lacks_messages_is_an_error() -> None:
    history = History(StorageUsage("me", Quota()), SizedMessages.of([Message(role="user", content="hi")] * 3))
    history.unload()
    with pytest.raises(HistoryNotLoaded, match="2 of 3"):
        history.load([(Message(role="user", content="hi"), 1.0)] * 2, history.since)
    assert not history.loaded
