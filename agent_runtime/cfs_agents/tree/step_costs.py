"""The cost of an agent's requests: reserved in the tree's budget and in the agent's record before each of them (B7).

After a kill the reservation of a lost request counts as spent, because what it has cost is unknown.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from cfs.contract.money import money
from cfs.errors import InvalidSettings
from cfs.wire import CURRENCY, Price
from cfs_agents.guards.money import MoneyBudget
from cfs_agents.loop.model import HasPrice, Model


class CostRecord(Protocol):
    """What is stored of an agent's costs in US dollars: of its requests so far, and reserved for the present one."""

    cost: float
    cost_reserved: float

    @property
    def agent_id(self) -> str:
        """The id of the agent."""
        ...


class StepCosts:
    """The requests of one agent; a `Meter`. `save` stores its record."""

    def __init__(self, budget: MoneyBudget, record: CostRecord, save: Callable[[], Awaitable[None]]) -> None:
        self._budget = budget
        self._record = record
        self._save = save

    async def reserve(self, price: Price, prompt_tokens: int, reply_tokens: int) -> int:
        """Reserve the most that a request can cost; return the most tokens that the reply may have."""
        reservation = await self._budget.reserve(self._record.agent_id, price, prompt_tokens, reply_tokens)
        self._record.cost_reserved = reservation.cost
        try:
            await self._save()
        except BaseException:  # no request is made
            self.settle(0.0)
            raise
        return reservation.reply_tokens

    def settle(self, cost: float | None) -> None:
        """Count what the request has cost; None if that is not known, so that it counts as reserved."""
        record = self._record
        if cost is None:
            cost = record.cost_reserved
        record.cost, record.cost_reserved = round(record.cost + cost, 9), 0.0
        self._budget.settle(record.agent_id, cost)


async def check_price(model: Model, limit: float) -> None:
    """Raise `InvalidSettings` if a budget of so many US dollars cannot be kept: the model has no price in them."""
    price = await model.price() if isinstance(model, HasPrice) else None
    if price is not None and price.currency == CURRENCY:
        return
    reason = "has no price" if price is None else f"has a price in {price.currency}"
    raise InvalidSettings(
        f"a budget of {money(limit)} needs a model with a price in {CURRENCY}, and this one {reason}: state its price"
        " in the file of models, choose another model, or give the budget in tokens"
    )
