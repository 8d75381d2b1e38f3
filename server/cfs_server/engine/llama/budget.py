"""How many tokens of prompts a step may take while others wait for their next token.

What a step costs is learnt as the engine runs (`costs`); a step is filled up to the time that it may take.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

from cfs_server.engine.llama.costs import StepCost

MIN_PROMPT_TOKENS = 32
"""A step takes this much of the prompts at least, or long ones would starve behind many streams."""
MIN_ALONE = 256
"""The same without streams. On a slow model that may take seconds: a new turn waits for it, and a cancel among many."""
ALONE = 4
"""Without streams a step may take so many times longer: only a cancel or a new turn waits for its end."""
LONGER = 0.25
"""Where a step without any prompt takes too long already, prompts may make it longer by this part of that time."""

Turn = TypeVar("Turn")


class PromptBudget:
    """Shares a step between streams (one token each, always) and prompts (equal parts of what is left)."""

    def __init__(self, step_tokens: int, step_seconds: float, cost: StepCost | None = None) -> None:
        self.cost = cost if cost is not None else StepCost()
        self._step_tokens = step_tokens
        self._step_seconds = step_seconds

    def share(self, pending: Mapping[Turn, int]) -> dict[Turn, int]:
        """Say how many of its pending tokens each turn may compute in the next step."""
        streams = {turn: 1 for turn, count in pending.items() if count == 1}
        left = self._prompt_tokens(len(streams))
        prompts = sorted((count, place, turn) for place, (turn, count) in enumerate(pending.items()) if count > 1)
        shares: dict[Turn, int] = dict(streams)
        for place, (count, _, turn) in enumerate(prompts):
            part = min(count, -(-left // (len(prompts) - place)))
            if part > 0:
                shares[turn] = part
                left -= part
        return shares

    def saw_step(self, tokens: int, seconds: float) -> None:
        """Learn from a step, with whatever was in it."""
        self.cost.saw(tokens, seconds)

    def seconds(self, tokens: float) -> float:
        """Predict how long prompts of so many tokens take, in steps without streams."""
        return tokens * (self.cost.per_token + self.cost.fixed / self._prompt_tokens(0))

    def _prompt_tokens(self, streams: int) -> int:
        """Find how many tokens of prompts fit into the time and the size of a step."""
        least = MIN_PROMPT_TOKENS if streams else MIN_ALONE
        may_take = self._step_seconds if streams else self._step_seconds * ALONE
        left = max(may_take - self.cost.seconds(streams), LONGER * self.cost.seconds(streams))
        fits = left / self.cost.per_token if self.cost.per_token else math.inf
        wanted = fits if self.cost.seconds(1) else 2 * MIN_PROMPT_TOKENS
        return int(min(self._step_tokens - streams, max(least, wanted)))
