"""Locks: for a time, for one agent, and gone with it."""

import pytest

from cfs_agents.guards.locks import Locks
from cfs_agents.tools import ToolError


class ManualClock:
    """A time that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_locked_file_is_told_with_who_has_it_and_for_how_long() -> None:
    clock = ManualClock()
    locks = Locks(60, clock=clock)
    assert locks.acquire("a", "x.txt") == "x.txt is yours for 60 s"
    clock.now = 20
    with pytest.raises(ToolError, match=r"x\.txt is reserved by a for 40 s more at most"):
        locks.acquire("b", "/workspace/x.txt")
    assert locks.held() == {"x.txt": "a"}


def test_a_lock_ends_with_its_time_and_can_be_renewed() -> None:
    clock = ManualClock()
    locks = Locks(60, clock=clock)
    locks.acquire("a", "x.txt")
    clock.now = 50
    assert locks.acquire("a", "x.txt") == "x.txt is yours for 60 s more"
    clock.now = 100
    with pytest.raises(ToolError, match="reserved by a"):
        locks.acquire("b", "x.txt")
    clock.now = 111
    locks.acquire("b", "x.txt")
    assert locks.held() == {"x.txt": "b"}


def test_only_who_has_a_lock_can_give_it_up() -> None:
    locks = Locks()
    locks.acquire("a", "x.txt")
    with pytest.raises(ToolError, match="not reserved by you"):
        locks.release("b", "x.txt")
    assert locks.release("a", "x.txt") == "x.txt is free"
    with pytest.raises(ToolError, match="not reserved by you"):
        locks.release("a", "x.txt")


def test_all_locks_of_an_agent_go_with_it() -> None:
    locks = Locks()
    for path in ("x.txt", "y/z.txt"):
        locks.acquire("a", path)
    locks.acquire("b", "b.txt")
    locks.release_all("a")
    assert locks.held() == {"b.txt": "b"}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", ""])
def test_what_is_no_file_of_the_workspace_cannot_be_locked(path: str) -> None:
    with pytest.raises(ToolError):
        Locks().acquire("a", path)
    with pytest.raises(ToolError):
        Locks().release("a", path)
