"""How long a newcomer would wait, by what fair shares put before him."""

import pytest

from cfs_server.engine.contract.backlog import MOST_OWNERS, Backlog


def waits(backlog: Backlog, owner: str, kind: str = "interactive") -> float:
    """Ask for an owner's turn, in milliseconds' precision."""
    return round(backlog.wait(owner, kind), 3)


def test_an_engine_with_a_place_lets_nobody_wait() -> None:
    assert Backlog().wait("anybody", "interactive") == 0


def test_what_an_owner_has_waiting_is_before_his_next_turn() -> None:
    backlog = Backlog.of(1.0, [("a", "interactive", 2.0), ("a", "interactive", 4.0)])
    assert waits(backlog, "a") == 1 + 6


def test_of_each_other_owner_only_as_much_is_before_him_and_a_turn() -> None:
    """An owner with much waits longer than a newcomer, and none for more than there is."""
    crowd = [("crowd", "interactive", 2.0)] * 50
    backlog = Backlog.of(1.0, [*crowd, ("light", "interactive", 2.0)])
    assert waits(backlog, "crowd") == 1 + 100 + 2
    assert waits(backlog, "light") == 1 + 2 + (2 + 2)
    assert waits(backlog, "new") == 1 + 2 + 2


def test_an_owners_kinds_of_work_count_by_weight() -> None:
    """While he has agents at work a user waits for half a turn of theirs, and an agent for two turns of users."""
    backlog = Backlog.of(0.0, [("a", "agent", 2.0)] * 50)
    assert waits(backlog, "a") == 1
    assert waits(backlog, "a", "agent") == 100
    backlog = Backlog.of(0.0, [("a", "interactive", 2.0)] * 50)
    assert waits(backlog, "a", "agent") == 4


def test_it_stays_small_however_many_owners_wait() -> None:
    """Those with least are summed up, and go before all others: none is promised too much."""
    few = [(f"few-{n}", "interactive", 0.1) for n in range(100)]
    many = [(f"many-{n}", "interactive", 3.0) for n in range(MOST_OWNERS)]
    backlog = Backlog.of(0.0, [*few, *many])
    assert set(backlog.waiting) == {owner for owner, _, _ in many}
    assert backlog.rest == pytest.approx(10.0)
    assert waits(backlog, "new") == round(backlog.turn * MOST_OWNERS + 10.0, 3)
