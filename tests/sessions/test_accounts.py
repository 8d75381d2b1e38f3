"""How much an owner's sessions take, and how much they may (H7)."""

import contextlib
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.errors import NotFound, StorageFull, TooLarge
from cfs.wire import Message, SettingsPatch, ToolCall, Usage
from cfs_server.domain.history import History
from cfs_server.domain.message_sizes import MESSAGE_COST, cost_of
from cfs_server.domain.quotas import Quota, StorageUsage, StoreLimits
from cfs_server.domain.transcripts import SizedMessages, read_history
from cfs_server.domain.turns import TurnRequest
from tests.sessions.support import StoreHarness, running_store


def test_what_a_part_takes_the_whole_takes_too() -> None:
    whole = StorageUsage("the server", Quota())
    part = whole.part("alice", Quota())
    inner = part.part("alice's agent", Quota())
    inner.add(sessions=2, size=10)
    part.add(sessions=1, size=-3)
    assert [(each.sessions, each.bytes) for each in (inner, part, whole)] == [(2, 10), (3, 7), (3, 7)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 5), st.integers(-5, 5))))
def test_the_whole_is_the_sum_of_its_parts(changes: list[tuple[int, int, int]]) -> None:
    whole = StorageUsage("the server", Quota())
    parts = [whole.part(name, Quota()) for name in "abc"]
    for index, sessions, size in changes:
        parts[index].add(sessions=sessions, size=size)
    assert whole.sessions == sum(part.sessions for part in parts)
    assert whole.bytes == sum(part.bytes for part in parts)


def test_there_is_room_up_to_a_bound_and_not_beyond() -> None:
    account = StorageUsage("alice", Quota(sessions=2, size=10))
    account.require_room(sessions=2, size=10)
    account.add(sessions=1, size=6)
    account.require_room(sessions=1, size=4)
    with pytest.raises(StorageFull, match="alice may hold 2 sessions"):
        account.require_room(sessions=2)
    with pytest.raises(StorageFull, match="alice may hold 10 bytes"):
        account.require_room(size=5)
    assert (account.sessions, account.bytes) == (1, 6), "to ask takes nothing"


def test_the_bounds_of_the_whole_hold_for_its_parts() -> None:
    whole = StorageUsage("the server", Quota(sessions=3, size=10))
    alice, bob = whole.part("alice", Quota(sessions=2, size=8)), whole.part("bob", Quota())
    bob.add(sessions=2, size=5)
    alice.require_room(sessions=1, size=5)
    with pytest.raises(StorageFull, match="the server"):
        alice.require_room(sessions=2)
    with pytest.raises(StorageFull, match="the server"):
        alice.require_room(size=6)
    with pytest.raises(StorageFull, match="alice"):
        alice.require_room(size=9)


def test_a_bound_of_none_is_no_bound_and_one_of_zero_is() -> None:
    StorageUsage("alice", Quota()).require_room(sessions=10**9, size=10**15)
    nothing = StorageUsage("alice", Quota(0, 0))
    nothing.require_room()
    for more in ({"sessions": 1}, {"size": 1}):
        with pytest.raises(StorageFull):
            nothing.require_room(**more)


def test_what_is_over_a_bound_that_was_lowered_may_stay_and_shrink() -> None:
    account = StorageUsage("alice", Quota())
    account.add(sessions=5, size=50)
    account.quota = Quota(1, 1)
    account.require_room(sessions=0, size=0)
    account.require_room(sessions=-1, size=-10)
    with pytest.raises(StorageFull):
        account.require_room(sessions=1)


async def test_a_session_counts_for_its_account_as_long_as_it_lives() -> None:
    async with running_store() as d:
        alice, bob = d.store.account.part("alice", Quota()), d.store.account.part("bob", Quota())
        d.store.create("a/b", transcript="Assistant: hello\n", account=alice)
        d.store.fork("a/b", "copy", account=bob)
        d.store.rename("a", "bobs-now")
        assert (alice.sessions, bob.sessions, d.store.account.sessions) == (2, 1, 3)
        assert alice.bytes == bob.bytes == cost_of(Message(role="assistant", content="hello")) > MESSAGE_COST
        d.say("bobs-now/b", "more", generate=False)
        assert alice.bytes == bob.bytes + cost_of(Message(role="user", content="more"))
        d.store.delete("bobs-now")
        assert (alice.sessions, alice.bytes, d.store.account.sessions) == (0, 0, 1)


async def test_a_refused_session_leaves_nothing_behind() -> None:
    async with running_store(limits=StoreLimits(sessions=3)) as d:
        alice = d.store.account.part("alice", Quota(sessions=2))
        with pytest.raises(StorageFull, match="alice"):
            d.store.create("a/b/c", account=alice)
        d.store.create("a/b", account=alice)
        with pytest.raises(StorageFull, match="alice"):
            d.store.fork("a", "copy", account=alice)
        with pytest.raises(StorageFull, match="the server"):
            d.store.create("x/y")
        assert (alice.sessions, len(d.store)) == (2, 2)


def message(content: str, role: Literal["user", "assistant"] = "user", *calls: ToolCall) -> Message:
    return Message(role=role, content=content, tool_calls=calls)


@pytest.mark.parametrize("content", ["", "hello", "x" * 1000, "漢字" * 1000, "x" * 1000 + "😀"])
def test_a_message_is_charged_at_least_what_it_takes(content: str) -> None:
    """Measured: as many as make the interpreter's own memory show."""
    count = 1000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        messages = [Message.model_validate({"role": "user", "content": content + str(n)}) for n in range(count)]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    charged = sum(map(cost_of, messages))
    assert taken <= charged <= taken * 1.5


def test_calls_and_what_is_in_them_are_charged() -> None:
    plain = cost_of(message(""))
    count = 500
    forms: list[dict[str, object]] = [
        {},
        {"a": 1},
        {"a": [[] for _ in range(50)]},
        {f"k{n}": {"v": "x" * 20} for n in range(20)},
    ]
    for arguments in forms:
        text = json.dumps(arguments)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            calls = [ToolCall(id=f"id{n}", name=f"name{n}", arguments=json.loads(text)) for n in range(count)]
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        charged = sum(cost_of(message("", "assistant", call)) - plain for call in calls)
        assert taken <= charged <= taken * 3


EMPTY = Message(role="user", content="")
TALK = "User: hello\nAssistant: yes\n"


async def appended(d: StoreHarness) -> None:
    d.say("a", "hello")


async def imported(d: StoreHarness) -> None:
    d.store.create("a", transcript=TALK)


async def replaced(d: StoreHarness) -> None:
    d.store.open("a")
    d.store.replace("a", TALK * 3, "*")
    d.store.replace("a", TALK * 2, "*")


async def forked(d: StoreHarness) -> None:
    d.store.create("source", transcript=TALK * 2)
    d.store.fork("source", "a")
    d.store.fork("source", "part", messages=1)
    d.store.delete("source")


async def recorded(d: StoreHarness) -> None:
    for before in ((), (message("hello"), message("hello", "assistant"))):
        d.store.submit("a", TurnRequest(message("hello"), view=SizedMessages.of(before)))
        await d.settled("a")


async def recorded_at_length(d: StoreHarness) -> None:
    before = [message(str(n)) for n in range(1000)]
    d.store.submit("a", TurnRequest(message("hello"), view=SizedMessages.of(before)))
    await d.settled("a")
    d.store.submit("a", TurnRequest(message("again"), view=SizedMessages.of(before[:10]), may_replace=True))


async def told_by_an_agent(d: StoreHarness) -> None:
    d.store.create("a", SettingsPatch(driver="agent"))
    d.say("a", "hello")
    d.say("a", "this one waits")
    session = d.store.get("a")
    turn = session.claim(30)
    assert turn is not None
    assert turn.lease is not None
    for count in (3, 300):
        news = [message("", "assistant", ToolCall(id="1", name="f", arguments={"x": "y"}))] * count
        session.update(turn.id, turn.lease.secret, text="so", messages=news, lease_seconds=30)
    session.finish(turn.id, turn.lease.secret, reply=None, error=None, usage=Usage())


async def cancelled(d: StoreHarness) -> None:
    d.engine.hold()
    for text in ("one", "two", "three"):
        d.say("a", text)
    d.store.cancel("a", queued=True)


@pytest.mark.parametrize(
    "enter", [appended, imported, replaced, forked, recorded, recorded_at_length, told_by_an_agent, cancelled]
)
async def test_what_gets_in_is_charged_and_what_leaves_is_given_back(
    enter: Callable[[StoreHarness], Awaitable[None]],
) -> None:
    """To the byte, whichever way it came in."""
    async with running_store() as d:
        await enter(d)
        d.store.check_integrity()
        d.engine.release()
        for session in list(d.store):
            if session.settings.driver == "model":
                await d.settled(session.id)
        waiting = sum(turn.waiting_bytes for session in d.store for turn in session.queue)
        held = sum(cost_of(each) for session in d.store for each in session.history.messages)
        assert d.store.account.bytes == held + waiting > 0
        for session in list(d.store):
            with contextlib.suppress(NotFound):
                d.store.delete(session.id)
        assert d.store.account.bytes == 0


async def test_empty_messages_do_not_come_for_nothing() -> None:
    """A transcript of 0.35 MB in 50,000 of them: it is refused by its number, and is charged for what it takes."""
    many = "User: \n" * 50_000
    async with running_store() as d:
        with pytest.raises(TooLarge, match="20000 messages"):
            d.store.create("a", transcript=many)
        d.store.open("b")
        with pytest.raises(TooLarge, match="20000 messages"):
            d.store.replace("b", many, "*")
        assert (len(d.store), d.store.account.bytes) == (1, 0)
    async with running_store(limits=StoreLimits(messages=10**6, total_bytes=7 << 20)) as d:
        with pytest.raises(StorageFull):
            d.store.create("a", transcript=many)
        assert (len(d.store), d.store.account.bytes) == (0, 0)


async def test_a_session_has_so_many_messages_and_keeps_its_last_reply() -> None:
    async with running_store(limits=StoreLimits(messages=4)) as d:
        for text in ("one", "two"):
            d.say("a", text)
            await d.settled("a")
        with pytest.raises(StorageFull, match="4 messages"):
            d.say("a", "three")
        assert len(d.store.get("a").history) == 4
        with pytest.raises(TooLarge):
            d.store.submit("a", TurnRequest(message("x"), view=SizedMessages.of([EMPTY] * 4)))
        with pytest.raises(TooLarge):
            d.store.submit("new", TurnRequest(message("x"), view=SizedMessages.of([EMPTY] * 4)))
        d.store.replace("a", TALK, "*")
        d.say("a", "three")
        await d.settled("a")


async def test_an_agent_cannot_add_without_end() -> None:
    async with running_store(limits=StoreLimits(messages=10)) as d:
        d.store.create("a", SettingsPatch(driver="agent"))
        d.say("a", "hello")
        session = d.store.get("a")
        turn = session.claim(30)
        assert turn is not None
        assert turn.lease is not None
        with pytest.raises(StorageFull, match="10 are the most"):
            session.update(turn.id, turn.lease.secret, text="", messages=[EMPTY] * 10, lease_seconds=30)
        session.update(turn.id, turn.lease.secret, text="", messages=[EMPTY] * 9, lease_seconds=30)
        session.finish(turn.id, turn.lease.secret, reply="done", error=None, usage=Usage())
        assert session.history.messages[-1].content == "done"


@given(st.lists(st.sampled_from(["hello", "", "漢", "two\nlines", "User: quoted"]), max_size=20), st.integers(0, 20))
def test_a_history_weighs_the_same_however_it_was_made(contents: list[str], end: int) -> None:
    messages = [message(content) for content in contents]
    account = StorageUsage("alice", Quota())
    one, other = History(account), History(account, SizedMessages.of(messages))
    for each in messages:
        one.append(each, 0.0)
    assert (one.size, one.cost) == (other.size, other.cost)
    assert one.until(end) == SizedMessages.of(messages[:end])
    assert one.extended(messages) == SizedMessages.of(messages * 2)
    assert account.bytes == one.cost + other.cost
    assert read_history(one.text, 20, messages) == SizedMessages.of(messages)
    other.replace(SizedMessages.of(messages[:end]), 0.0)
    one.release(0.0)
    assert account.bytes == other.cost
