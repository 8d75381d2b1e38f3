"""How much an owner's sessions take, and how much they may (H7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.errors import StorageFull
from cfs_server.sessions.accounts import Account, Allowance
from cfs_server.sessions.limits import Limits
from tests.sessions.support import desk


def test_what_a_part_takes_the_whole_takes_too() -> None:
    whole = Account("the server", Allowance())
    part = whole.part("alice", Allowance())
    inner = part.part("alice's agent", Allowance())
    inner.add(sessions=2, size=10)
    part.add(sessions=1, size=-3)
    assert [(each.sessions, each.bytes) for each in (inner, part, whole)] == [(2, 10), (3, 7), (3, 7)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 5), st.integers(-5, 5))))
def test_the_whole_is_the_sum_of_its_parts(changes: list[tuple[int, int, int]]) -> None:
    whole = Account("the server", Allowance())
    parts = [whole.part(name, Allowance()) for name in "abc"]
    for index, sessions, size in changes:
        parts[index].add(sessions=sessions, size=size)
    assert whole.sessions == sum(part.sessions for part in parts)
    assert whole.bytes == sum(part.bytes for part in parts)


def test_there_is_room_up_to_a_bound_and_not_beyond() -> None:
    account = Account("alice", Allowance(sessions=2, size=10))
    account.require_room(sessions=2, size=10)
    account.add(sessions=1, size=6)
    account.require_room(sessions=1, size=4)
    with pytest.raises(StorageFull, match="alice may hold 2 sessions"):
        account.require_room(sessions=2)
    with pytest.raises(StorageFull, match="alice may hold 10 bytes"):
        account.require_room(size=5)
    assert (account.sessions, account.bytes) == (1, 6), "to ask takes nothing"


def test_the_bounds_of_the_whole_hold_for_its_parts() -> None:
    whole = Account("the server", Allowance(sessions=3, size=10))
    alice, bob = whole.part("alice", Allowance(sessions=2, size=8)), whole.part("bob", Allowance())
    bob.add(sessions=2, size=5)
    alice.require_room(sessions=1, size=5)
    with pytest.raises(StorageFull, match="the server"):
        alice.require_room(sessions=2)
    with pytest.raises(StorageFull, match="the server"):
        alice.require_room(size=6)
    with pytest.raises(StorageFull, match="alice"):
        alice.require_room(size=9)


def test_a_bound_of_none_is_no_bound_and_one_of_zero_is() -> None:
    Account("alice", Allowance()).require_room(sessions=10**9, size=10**15)
    nothing = Account("alice", Allowance(0, 0))
    nothing.require_room()
    for more in ({"sessions": 1}, {"size": 1}):
        with pytest.raises(StorageFull):
            nothing.require_room(**more)


def test_what_is_over_a_bound_that_was_lowered_may_stay_and_shrink() -> None:
    account = Account("alice", Allowance())
    account.add(sessions=5, size=50)
    account.allowance = Allowance(1, 1)
    account.require_room(sessions=0, size=0)
    account.require_room(sessions=-1, size=-10)
    with pytest.raises(StorageFull):
        account.require_room(sessions=1)


async def test_a_session_counts_for_its_account_as_long_as_it_lives() -> None:
    async with desk() as d:
        alice, bob = d.store.account.part("alice", Allowance()), d.store.account.part("bob", Allowance())
        d.store.create("a/b", transcript="Assistant: hello\n", account=alice)
        d.store.fork("a/b", "copy", account=bob)
        d.store.rename("a", "bobs-now")
        assert (alice.sessions, bob.sessions, d.store.account.sessions) == (2, 1, 3)
        assert alice.bytes == bob.bytes == len("Assistant: hello\n")
        d.say("bobs-now/b", "more", generate=False)
        assert (alice.bytes > bob.bytes, bob.bytes) == (True, len("Assistant: hello\n"))
        d.store.delete("bobs-now")
        assert (alice.sessions, alice.bytes, d.store.account.sessions) == (0, 0, 1)


async def test_a_refused_session_leaves_nothing_behind() -> None:
    async with desk(limits=Limits(sessions=3)) as d:
        alice = d.store.account.part("alice", Allowance(sessions=2))
        with pytest.raises(StorageFull, match="alice"):
            d.store.create("a/b/c", account=alice)
        d.store.create("a/b", account=alice)
        with pytest.raises(StorageFull, match="alice"):
            d.store.fork("a", "copy", account=alice)
        with pytest.raises(StorageFull, match="the server"):
            d.store.create("x/y")
        assert (alice.sessions, len(d.store)) == (2, 2)
