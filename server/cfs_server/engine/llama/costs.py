"""What a step costs: seconds = fixed + per_token * tokens + per_look * looks, fitted to what steps took here lately.

A look is one token that attends to one cell: what a prompt costs grows with what is before it. Each step moves the
plane towards what it took (normalised least mean squares): one of few tokens moves the fixed part, one of many the
slope, one far into a prompt what a look costs.
"""

from dataclasses import dataclass

_RATE = 0.2
"""How much of an error the plane makes good at the next step of the same size."""
_CREDIBLE = 3.0
"""A step that took longer than so many times the prediction is an accident (a page fault), unless the next is, too."""
_TYPICAL = 128
"""Tokens of a step whose error is put down to fixed part and tokens equally; those of a longer one are half its cost
at least, where it has no looks."""
_TYPICAL_LOOKS = _TYPICAL * 1024
"""Looks of a step that are held for as much of an error as those tokens."""
_LOOK = 2e-4
"""What a look costs by what a token costs, until steps have told: it was 6e-4 and 2.5e-4 with models of 54 and 500
million parameters, and larger ones have less."""


@dataclass(slots=True)
class StepCost:
    """A plane that learns; seconds. All parts are zero until the first step, whose time is halved between two."""

    fixed: float = 0.0
    per_token: float = 0.0
    per_look: float = 0.0
    doubted: bool = False

    def seconds(self, tokens: float, looks: float = 0.0) -> float:
        """Predict how long a step of so many tokens takes that look at so many cells together."""
        return self.fixed + self.per_token * tokens + self.per_look * looks

    def credible(self, seconds: float, tokens: float, looks: float = 0.0) -> float:
        """Cut what a step took down to what may be put down to its work: the rest is an accident."""
        expected = self.seconds(tokens, looks)
        return min(seconds, _CREDIBLE * expected) if expected else seconds

    def saw(self, tokens: int, seconds: float, looks: float = 0.0) -> None:
        """Learn from a step. Nothing is faster than it can be: one of less than half the time is believed at once."""
        expected = self.seconds(tokens, looks)
        if not expected:
            self.fixed, self.per_token = seconds / 2, seconds / 2 / tokens
            self.per_look = _LOOK * self.per_token if looks else 0.0
            return
        doubted, self.doubted = self.doubted, seconds > _CREDIBLE * expected
        believed = seconds < expected / 2 or (doubted and self.doubted)
        change = seconds - expected if believed else _RATE * (min(seconds, _CREDIBLE * expected) - expected)
        self._move(tokens, looks, expected + change, change)

    def _move(self, tokens: int, looks: float, aim: float, change: float) -> None:
        """Let the plane go through `aim` at this step."""
        size, depth = tokens / _TYPICAL, looks / _TYPICAL_LOOKS
        step = change / (1 + size * size + depth * depth)
        if looks:
            self.per_look = min(max(self.per_look + step * depth / _TYPICAL_LOOKS, 0.0), aim / looks)
        rest = aim - self.per_look * looks
        least = rest / 2 / tokens if tokens >= _TYPICAL else 0.0
        self.per_token = min(max(self.per_token + step * size / _TYPICAL, least), rest / tokens)
        self.fixed = rest - self.per_token * tokens
