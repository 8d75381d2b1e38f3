"""The budget of a tree: refused before the call, and drawn by all below."""

import pytest

from cfs.errors import TooMany
from cfs_agents.guards.budget import TreeBudget


@pytest.fixture
def budget() -> TreeBudget:
    """A root with 1,000 tokens, a child with 600 of them, a grandchild with no limit of its own."""
    budget = TreeBudget()
    budget.open("main", None, 1_000)
    budget.open("coder", "main", 600)
    budget.open("tester", "coder", None)
    return budget


def test_a_grandchild_draws_from_all_above_it(budget: TreeBudget) -> None:
    budget.draw("tester", 250)
    budget.draw("coder", 100)
    assert [budget.used(name) for name in ("main", "coder", "tester")] == [350, 350, 250]


def test_a_question_is_refused_before_it_is_asked(budget: TreeBudget) -> None:
    budget.draw("tester", 550)
    budget.reserve("tester", 50)
    with pytest.raises(TooMany, match="the token budget of coder is used up: 550 of 600"):
        budget.reserve("tester", 51)
    budget.reserve("main", 400)


def test_the_trees_budget_holds_for_those_without_one(budget: TreeBudget) -> None:
    budget.open("writer", "main", None)
    budget.draw("main", 900)
    with pytest.raises(TooMany, match="of main"):
        budget.reserve("writer", 101)


def test_those_who_ask_at_the_same_time_cannot_all_have_the_rest(budget: TreeBudget) -> None:
    budget.open("writer", "main", None)
    budget.reserve("coder", 590)
    with pytest.raises(TooMany):
        budget.reserve("writer", 500)
    budget.draw("coder", 100)
    budget.reserve("writer", 500)
    budget.release("writer")
    budget.reserve("main", 900)


def test_a_refused_question_leaves_nothing_set_aside(budget: TreeBudget) -> None:
    with pytest.raises(TooMany):
        budget.reserve("tester", 700)
    budget.reserve("coder", 600)


def test_a_new_process_counts_what_was_used(budget: TreeBudget) -> None:
    again = TreeBudget()
    again.open("main", None, 1_000, used=300)
    again.open("coder", "main", 600, used=500)
    assert again.used("main") == 800
    with pytest.raises(TooMany, match="of coder"):
        again.reserve("coder", 200)


def test_without_limits_all_is_counted_and_nothing_refused() -> None:
    budget = TreeBudget()
    budget.open("main", None, None)
    budget.reserve("main", 10**9)
    budget.draw("main", 10**9)
    assert budget.used("main") == 10**9
