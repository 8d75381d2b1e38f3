"""What turns cost, and how much a session, or a principal in a day, may spend. Pure: no I/O (H10)."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cfs.contract.money import money
from cfs.errors import TooMany
from cfs.wire import CURRENCY, Price, Usage

_DIGITS = 9
"""Decimal places of a sum of money: a token costs a millionth of a price."""


class Spent(NamedTuple):
    """Tokens of prompts and replies, and their cost in US dollars."""

    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        """Return the sum."""
        return Spent(self.tokens + other.tokens, round(self.cost + other.cost, _DIGITS))


def spent_of(usage: Usage) -> Spent:
    """Return what a turn has spent."""
    return Spent(usage.prompt_tokens + usage.completion_tokens, usage.cost or 0.0)


def priced(usage: Usage, price: Price | None) -> Usage:
    """Return a usage with its cost. Without a price in US dollars it has none."""
    if price is None or price.currency != CURRENCY:
        return usage.model_copy(update={"cost": None})
    cached = price.prompt if price.cached is None else price.cached
    cost = (
        (usage.prompt_tokens - usage.cached_tokens) * price.prompt
        + usage.cached_tokens * cached
        + usage.completion_tokens * price.completion
    )
    return usage.model_copy(update={"cost": round(cost / 1e6, _DIGITS)})


@dataclass(frozen=True, slots=True)
class SpendingLimit:
    """The most that may be spent; None means no limit. `cost` is in US dollars."""

    tokens: int | None = None
    cost: float | None = None

    @classmethod
    def of_budget(cls, budget: str | None) -> "SpendingLimit":
        """Read the setting `budget` of a session: a number of tokens, or an amount such as `$0.50`."""
        if budget is None:
            return cls()
        return cls(cost=float(budget[1:])) if budget.startswith("$") else cls(tokens=int(budget))

    def excess(self, spent: Spent) -> str | None:
        """Say what of the limit is spent, if it is reached."""
        if self.cost is not None and spent.cost >= self.cost:
            return f"{money(spent.cost)} of {money(self.cost)}"
        if self.tokens is not None and spent.tokens >= self.tokens:
            return f"{spent.tokens} of {self.tokens} tokens"
        return None

    def check_price(self, model: str, price: Price | None) -> None:
        """Raise `TooMany` if the limit is in US dollars and the price is not."""
        if self.cost is not None and price is not None and price.currency != CURRENCY:
            raise TooMany(
                f"a limit in {CURRENCY} holds here, and the price of model {model!r} is in {price.currency}: choose"
                f" another model, or state its price in {CURRENCY}"
            )


NO_LIMIT = SpendingLimit()


def day_of(at: float) -> str:
    """Return the day in UTC of a time in seconds since the epoch, such as `2026-01-31`."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def seconds_left(at: float) -> float:
    """Return the seconds from a time to the end of its day in UTC."""
    now = datetime.fromtimestamp(at, UTC)
    return ((now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0) - now).total_seconds()
