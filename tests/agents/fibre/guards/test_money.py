"""The budget of a tree in money: what requests cost at most is reserved, so that all together never exceed it."""

import asyncio

import pytest

from cfs.errors import TooMany
from cfs.wire import Price
from cfs_agents.guards.money import MIN_REPLY, MoneyBudget

CENT = Price(prompt=10_000, completion=10_000, currency="USD")
"""A token costs a cent."""


async def test_the_reply_is_as_long_as_the_rest_allows() -> None:
    budget = MoneyBudget(2.0)
    assert await budget.reserve("main", CENT, 50, 1_000) == (150, 2.0)
    budget.settle("main", 0.75)
    assert await budget.reserve("main", CENT, 50, 60) == (60, 1.1)
    budget.settle("main", 0.5)
    with pytest.raises(TooMany, match=r"used up: \$1\.25 of \$2\.00 are spent, and the next step may cost \$1\.14"):
        await budget.reserve("main", CENT, 50, 1_000)


async def test_who_asks_at_the_same_time_waits_for_what_others_leave() -> None:
    budget = MoneyBudget(2.0)
    await budget.reserve("main", CENT, 10, 190)
    waiting = asyncio.create_task(budget.reserve("child", CENT, 10, MIN_REPLY))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.settle("main", 0.2)
    assert (await waiting).reply_tokens == MIN_REPLY


async def test_who_waits_in_vain_is_refused() -> None:
    budget = MoneyBudget(2.0)
    await budget.reserve("main", CENT, 10, 190)
    waiting = asyncio.create_task(budget.reserve("child", CENT, 10, MIN_REPLY))
    await asyncio.sleep(0)
    budget.settle("main", 2.0)
    with pytest.raises(TooMany, match="the budget of the task is used up"):
        await waiting


async def test_the_budget_is_for_one_task_of_the_root() -> None:
    budget = MoneyBudget(1.0)
    budget.spent = budget.before = 5.0
    await budget.reserve("main", CENT, 10, 20)
    budget.settle("main", 0.3)
    assert (budget.used, budget.spent) == (0.3, 5.3)


async def test_cached_tokens_that_cost_more_are_reserved_for() -> None:
    price = Price(prompt=10_000, completion=0, cached=20_000, currency="USD")
    assert await MoneyBudget(1.0).reserve("main", price, 10, 50) == (50, 0.2)
