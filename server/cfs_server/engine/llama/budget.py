"""How many tokens of prompts a step may take while others wait for their next token.

The cost of a prompt's token is learnt as the engine runs; a step is filled up to the time that it may cost.
"""

from collections.abc import Mapping
from typing import TypeVar

MIN_PROMPT_TOKENS = 32
"""A step takes this much of the prompts at least, or long ones would starve behind many streams."""
ALONE = 4
"""Without streams a step may take so many times longer: only a cancel or a new turn waits for its end."""
_LEARNING_RATE = 0.2

Turn = TypeVar("Turn")


class PromptBudget:
    """Shares a step between streams (one token each, always) and prompts (equal parts of what is left)."""

    def __init__(self, step_tokens: int, step_seconds: float) -> None:
        self._step_tokens = step_tokens
        self._step_seconds = step_seconds
        self.seconds_per_token = 0.0

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

    def saw_step(self, streams: int, tokens: int, seconds: float) -> None:
        """Learn from a step what a token of a prompt costs."""
        if tokens - streams >= MIN_PROMPT_TOKENS:
            rate = _LEARNING_RATE if self.seconds_per_token else 1.0
            self.seconds_per_token += rate * (seconds / tokens - self.seconds_per_token)

    def _prompt_tokens(self, streams: int) -> int:
        room = self._step_tokens - streams
        seconds = self._step_seconds if streams else self._step_seconds * ALONE
        affordable = seconds / self.seconds_per_token if self.seconds_per_token else 2 * MIN_PROMPT_TOKENS
        return int(min(room, max(MIN_PROMPT_TOKENS, affordable)))
