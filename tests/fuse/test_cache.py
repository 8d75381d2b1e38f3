"""What the bridge knows is what the events say, in whatever order a listing and they arrive (F7); without a mount."""

import threading
from typing import Any

import pytest

from cfs.contract.transcript import TranscriptMessage, render
from cfs.errors import Gone, NotFound, Unauthorized, Unreachable
from cfs.state.stream import EventName, StreamEvent
from cfs.wire import SessionInfo, Settings
from cfs_fuse.cache import Cache, CachedSession

SETTINGS = Settings().model_dump()


class Source:
    """Numbers events as a server does."""

    def __init__(self) -> None:
        self.position = 0
        self.numbers: dict[str, int] = {}

    def make(self, kind: EventName, session: str, **data: Any) -> StreamEvent:
        """Make the next event of a session."""
        if kind == "session.created" and "renamed_from" not in data:
            self.numbers[session] = 0
            data = {"settings": SETTINGS, "messages": 0, "size": 0} | data
        self.position += 1
        self.numbers[session] += 1
        return StreamEvent(kind, data, "", session, self.numbers[session], self.position, float(self.position))

    def say(self, session: str, role: str, content: str, index: int, **data: Any) -> StreamEvent:
        """Make the event of a message."""
        message = {"role": role, "content": content}
        return self.make("message.added", session, turn="t", index=index, message=message, **data)

    def rename(self, session: str, new: str) -> list[StreamEvent]:
        """Make the two events of a new name."""
        gone = self.make("session.deleted", session, renamed_to=new)
        self.numbers[new] = self.numbers.pop(session)
        data = {"settings": SETTINGS, "messages": 1, "size": 9}
        return [gone, self.make("session.created", new, renamed_from=session, **data)]


def info(name: str, *, event: int = 1, size: int = 0, created: float = 0.0, state: str = "idle") -> SessionInfo:
    """Make a line of a listing."""
    return SessionInfo.model_validate(
        {
            "id": name,
            "state": state,
            "queued": 0,
            "messages": 0,
            "size": size,
            "created_at": created,
            "updated_at": created,
            "sub_sessions": 0,
            "event": event,
            "etag": '"x-1"',
        }
    )


@pytest.fixture
def cache() -> Cache:
    """A cache that is online and empty."""
    found = Cache()
    found.refresh([], resumed=False)
    return found


@pytest.fixture
def source() -> Source:
    """A server's numbers."""
    return Source()


def test_a_turn(cache: Cache, source: Source) -> None:
    """From the message to the reply: size, state and text follow."""
    cache.apply(source.make("session.created", "f"))
    entry = cache.get("f")
    entry.text = []
    cache.apply(source.say("f", "user", "hi\nUser: x", 0))
    assert not cache.settled(entry), "no reader slips in before the event that says that it is generating"
    cache.apply(source.make("turn.started", "f", turn="t"))
    cache.apply(source.make("state.changed", "f", state="generating", queued=0))
    cache.apply(source.make("token", "f", turn="t", text="ye", tokens=1))
    assert entry.turn is not None
    assert entry.turn.pieces == ["ye"]
    cache.apply(source.say("f", "assistant", "yes", 1))
    cache.apply(source.make("turn.finished", "f", turn="t", reply="yes"))
    assert not cache.settled(entry)
    cache.apply(source.make("state.changed", "f", state="idle", queued=0))
    assert cache.settled(entry)
    text = render([TranscriptMessage("user", "hi\nUser: x"), TranscriptMessage("assistant", "yes")])
    assert b"".join(entry.text) == text.encode()
    assert (entry.size, entry.messages) == (len(text.encode()), 2)
    assert entry.turn.ended
    assert "".join(entry.turn.pieces) == "yes"


def test_size_that_the_server_says_is_believed(cache: Cache, source: Source) -> None:
    """Where the event carries it, nothing is computed."""
    cache.apply(source.make("session.created", "f", size=100, messages=3))
    cache.apply(source.say("f", "user", "hi", 3, size=123, state="idle"))
    assert (cache.get("f").size, cache.get("f").messages, cache.get("f").state) == (123, 4, "idle")


def test_events_that_a_listing_includes_are_not_counted_twice(cache: Cache, source: Source) -> None:
    """A listing is taken while the events of the same time are on their way."""
    events = [source.make("session.created", "f"), source.say("f", "user", "hi", 0)]
    cache.refresh([info("f", event=2, size=9, created=events[0].time)], resumed=False)
    for event in events:
        cache.apply(event)
    assert cache.get("f").size == 9
    cache.apply(source.say("f", "user", "ho", 1))
    assert cache.get("f").size == 18


def test_another_life_of_a_name(cache: Cache, source: Source) -> None:
    """The listing shows the second session of a name; the stream still tells of the first."""
    old = [source.make("session.created", "f"), source.say("f", "user", "a", 0), source.say("f", "user", "b", 1)]
    old.append(source.make("session.deleted", "f"))
    new = [source.make("session.created", "f"), source.say("f", "user", "c", 0)]
    cache.refresh([info("f", event=2, size=8, created=new[0].time)], resumed=False)
    entry = cache.get("f")
    for event in old + new:
        cache.apply(event)
    assert cache.get("f") is entry
    assert (entry.size, entry.deleted) == (8, False)


def test_deletion(cache: Cache, source: Source) -> None:
    """A holder of the session is told; a new one of the name is another."""
    cache.apply(source.make("session.created", "f"))
    entry = cache.get("f")
    cache.apply(source.make("session.deleted", "f"))
    with cache.lock, pytest.raises(Gone):
        cache.check(entry)
    with pytest.raises(NotFound):
        cache.get("f")
    cache.apply(source.make("session.created", "f"))
    assert cache.get("f") is not entry


def test_rename_keeps_the_session(cache: Cache, source: Source) -> None:
    """It is the same one under another name, and the family changes."""
    cache.apply(source.make("session.created", "a/b"))
    entry = cache.get("a/b")
    for event in source.rename("a/b", "c"):
        cache.apply(event)
    assert cache.get("c") is entry
    assert (entry.id, entry.deleted, cache.find("a/b")) == ("c", False, None)
    assert cache.family("a") == []
    assert cache.roots() == ["c"]


def test_rename_to_where_the_caller_may_not_look(cache: Cache, source: Source) -> None:
    """For this caller the session is gone."""
    cache.apply(source.make("session.created", "f"))
    cache.apply(source.make("session.created", "g"))
    entry = cache.get("f")
    cache.apply(source.rename("f", "secret")[0])
    assert not entry.deleted
    cache.apply(source.say("g", "user", "x", 0))
    assert entry.deleted


def test_settled_includes_what_is_below(cache: Cache, source: Source) -> None:
    """A parent waits for its children, a child does not wait for its parent (S13)."""
    for name in ("a", "a/b", "a/b/c", "ab"):
        cache.apply(source.make("session.created", name))
    cache.apply(source.make("state.changed", "a/b/c", state="generating", queued=0))
    cache.apply(source.make("state.changed", "ab", state="generating", queued=0))
    assert [cache.settled(cache.get(name)) for name in ("a", "a/b", "a/b/c")] == [False] * 3
    cache.apply(source.make("state.changed", "a/b/c", state="idle", queued=0))
    assert [cache.settled(cache.get(name)) for name in ("a", "a/b", "a/b/c", "ab")] == [True, True, True, False]


def test_server_that_is_away(cache: Cache, source: Source) -> None:
    """Nothing of the past is shown, and no reader waits; with the server everything comes back."""
    cache.apply(source.make("session.created", "f"))
    cache.apply(source.make("state.changed", "f", state="generating", queued=0))
    entry = cache.get("f")
    cache.offline(Unreachable("away"))
    assert cache.settled(entry)
    for look in (cache.roots, cache.totals, lambda: cache.get("f")):
        with pytest.raises(Unreachable):
            look()
    cache.offline(Unauthorized("revoked"))
    with pytest.raises(Unauthorized):
        cache.get("f")
    cache.refresh([info("f", event=2, created=1.0, state="generating")], resumed=True)
    assert cache.get("f") is entry
    assert not cache.settled(entry)
    cache.refresh([], resumed=False)
    assert entry.deleted


def test_resumed_stream_brings_what_was_missed(cache: Cache, source: Source) -> None:
    """A session whose events are still to come keeps what it has; after a break it is taken as it is now."""
    cache.apply(source.make("session.created", "f"))
    entry = cache.get("f")
    entry.text = []
    missed = source.say("f", "user", "hi", 0)
    cache.refresh([info("f", event=2, size=9, created=1.0)], resumed=True)
    assert entry.size == 0
    cache.apply(missed)
    assert (entry.size, entry.text) == (9, [b"User: hi\n"])
    cache.refresh([info("f", event=7, size=50, created=1.0)], resumed=False)
    assert cache.get("f") is entry
    assert entry.size == 50
    assert entry.text is None


def test_history_that_was_edited(cache: Cache, source: Source) -> None:
    """The text is not kept, and what was there at the opening of a file is no base any more."""
    cache.apply(source.make("session.created", "f"))
    entry = cache.get("f")
    entry.text = [b"x"]
    edits = entry.edits
    cache.apply(source.make("history.replaced", "f", messages=2, size=20))
    assert (entry.size, entry.edits) == (20, edits + 1)
    assert entry.text is None


@pytest.mark.parametrize(
    ("said", "reply", "shown"),
    [
        (["a", " b "], "a b", "a b "),
        (["a"], "a [Cancelled]", "a [Cancelled]"),
        ([], "[Cancelled]", "[Cancelled]"),
        ([], "[Error: x]", "[Error: x]"),
        (["a"], "[Error: x]", "a\n[Error: x]"),
    ],
)
def test_end_of_a_turn(cache: Cache, source: Source, said: list[str], reply: str, shown: str) -> None:
    """`.live` ends with what the transcript shows beyond the tokens."""
    cache.apply(source.make("session.created", "f"))
    cache.apply(source.make("turn.started", "f", turn="t"))
    for text in said:
        cache.apply(source.make("token", "f", turn="t", text=text, tokens=1))
    cache.apply(source.make("turn.failed", "f", turn="t", reply=reply))
    turn = cache.get("f").turn
    assert turn is not None
    assert "".join(turn.pieces) == shown


def test_waiters_are_woken_and_only_by_what_concerns_them(cache: Cache, source: Source) -> None:
    """Tokens do not wake a reader that waits for the end."""
    for name in ("a", "a/b", "c"):
        cache.apply(source.make("session.created", name))
    entry: CachedSession = cache.get("a")
    woken: list[str] = []
    ready = threading.Barrier(2)

    def wait() -> None:
        with cache.lock:
            moved = cache.moved(entry)
            ready.wait()
            moved.wait(10)
            woken.append("woken")

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    cache.apply(source.make("token", "a", turn="t", text="x", tokens=1))
    cache.apply(source.make("state.changed", "c", state="generating", queued=0))
    assert woken == []
    cache.apply(source.make("state.changed", "a/b", state="idle", queued=0))
    thread.join(10)
    assert woken == ["woken"]
