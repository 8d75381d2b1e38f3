"""What a step costs: seconds = fixed + per_token * tokens, a line through what steps took here lately.

Each step moves the line towards what it took (normalised least mean squares): one of few tokens moves the fixed part,
one of many the slope. So a slope that was learnt from prompts outlives any number of steps without one.
"""

from dataclasses import dataclass

_RATE = 0.2
"""How much of an error the line makes good at the next step of the same size."""
_CREDIBLE = 3.0
"""A step that took longer than so many times the prediction is an accident (a page fault), unless the next is, too."""
_TYPICAL = 128
"""Tokens of a step whose error is put down to both parts equally; those of a longer one are half its cost at least."""


@dataclass(slots=True)
class StepCost:
    """A line that learns; seconds. Both parts are zero until the first step, whose time is halved between them."""

    fixed: float = 0.0
    per_token: float = 0.0
    doubted: bool = False

    def seconds(self, tokens: float) -> float:
        """Predict how long a step of so many tokens takes."""
        return self.fixed + self.per_token * tokens

    def saw(self, tokens: int, seconds: float) -> None:
        """Learn from a step. Nothing is faster than it can be: one of less than half the time is believed at once."""
        expected = self.seconds(tokens)
        if not expected:
            self.fixed, self.per_token = seconds / 2, seconds / 2 / tokens
            return
        doubted, self.doubted = self.doubted, seconds > _CREDIBLE * expected
        believed = seconds < expected / 2 or (doubted and self.doubted)
        change = seconds - expected if believed else _RATE * (min(seconds, _CREDIBLE * expected) - expected)
        size, aim = tokens / _TYPICAL, expected + change
        slope = self.per_token + change * size / (1 + size * size) / _TYPICAL
        least = aim / 2 / tokens if tokens >= _TYPICAL else 0.0
        self.per_token = min(max(slope, least), aim / tokens)
        self.fixed = aim - self.per_token * tokens
