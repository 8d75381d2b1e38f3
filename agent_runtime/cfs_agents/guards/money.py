"""The money that the agents of a tree may spend on one task of its root (B7, H10). No I/O.

An agent reserves the most that its next request can cost, so what all requests together cost stays within the budget.
"""

import asyncio
from typing import NamedTuple

from cfs.contract.money import money
from cfs.errors import TooMany
from cfs.wire import Price
from cfs_agents.base.messages import Language, catalogue

MIN_REPLY = 64
"""Tokens of the shortest reply for which a request is made."""
_DIGITS = 9


class Reservation(NamedTuple):
    """The most tokens that a reply may have, and the most that its request can cost in US dollars."""

    reply_tokens: int
    cost: float


class MoneyBudget:
    """What a tree has spent in US dollars, and the requests that are being answered. `limit` None is no limit."""

    def __init__(self, limit: float | None = None, language: Language = "en") -> None:
        self.limit = limit
        self.spent = 0.0
        """By all tasks, those of earlier processes included."""
        self.before = 0.0
        """What had been spent before the present task of the root."""
        self._say = catalogue(language)
        self._reserved: dict[str, float] = {}
        self._changed = asyncio.Event()

    @property
    def used(self) -> float:
        """What the present task of the root has spent."""
        return round(self.spent - self.before, _DIGITS)

    async def reserve(self, agent_id: str, price: Price, prompt_tokens: int, reply_tokens: int) -> Reservation:
        """Reserve what a request costs at most; the reply may be shorter than `reply_tokens` if the rest is too small.

        Waits while requests of other agents have reserved the rest. Raises `TooMany` if the budget is too small.
        """
        prompt_cost = prompt_tokens * max(price.prompt, price.cached or 0.0) / 1e6
        token_cost = price.completion / 1e6
        min_cost = prompt_cost + min(MIN_REPLY, reply_tokens) * token_cost
        while self.limit is not None and self.used + min_cost + sum(self._reserved.values()) > self.limit:
            if self.used + min_cost > self.limit or not self._reserved:
                raise TooMany(self._say.money.format(money(self.used), money(self.limit), money(min_cost)))
            self._changed.clear()
            await self._changed.wait()
        if self.limit is not None and token_cost:
            left = self.limit - self.used - sum(self._reserved.values()) - prompt_cost
            reply_tokens = min(reply_tokens, int(left / token_cost))
        cost = prompt_cost + reply_tokens * token_cost
        self._reserved[agent_id] = cost
        return Reservation(reply_tokens, round(cost, _DIGITS))

    def settle(self, agent_id: str, cost: float) -> None:
        """Count what a request has cost, and release its reservation."""
        self._reserved.pop(agent_id, None)
        self.spent = round(self.spent + cost, _DIGITS)
        self._changed.set()
