"""What was spent on models."""

from pydantic import Field

from cfs.contract.wire.base import WireModel
from cfs.contract.wire.messages import Usage


class CostRow(WireModel):
    """What a principal has spent in a day in UTC, with one model, in one session."""

    day: str
    principal: str
    session: str = Field(description="The last known id; empty for completions without a session.")
    model: str
    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float = Field(0.0, description="In US dollars, at the prices when each turn ended.")
    unpriced_tokens: int = Field(0, description="Tokens without a price, which cost nothing.")

    @property
    def tokens(self) -> int:
        """The tokens of prompts and replies."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, usage: Usage) -> "CostRow":
        """Return the row with one more turn."""
        return self.model_copy(
            update={
                "turns": self.turns + 1,
                "prompt_tokens": self.prompt_tokens + usage.prompt_tokens,
                "cached_tokens": self.cached_tokens + usage.cached_tokens,
                "completion_tokens": self.completion_tokens + usage.completion_tokens,
                "cost": round(self.cost + (usage.cost or 0.0), 9),
                "unpriced_tokens": self.unpriced_tokens + (usage.tokens if usage.cost is None else 0),
            }
        )


class Costs(WireModel):
    """What was spent, the newest day first."""

    costs: tuple[CostRow, ...]
