"""How long a step of streams takes, by its number of tokens.

That is no straight line. The library multiplies one row by other code than several, so a second token can cost as much
as the first one, and the next ones far less: 1, 2, 4, 8 and 16 tokens of a model with 54 million parameters take 3.3,
7.1, 9.7, 14.6 and 20.8 ms. So it is a curve: means at some sizes, and straight lines between them.

Each token also passes over the cells of all turns in the pool: with 32 turns and 7,500 cells that is half of a step's
time. It changes while turns grow and end, for all sizes alike, so it is learned apart from the curve, and faster.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from cfs_server.engine.llama.cost_model import ONE_BY_ONE, StepCost

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Steps between two of these numbers of tokens have one mean."""
_RATE = 0.05
"""How fast a mean follows."""
_POOL_RATE, _POOL_CHANGE = 0.3, 0.1
"""How fast the time that each token takes for the cells of all turns follows, and the largest part of a step that it
may explain. It changes little from step to step; what else a step takes longer is chance."""
_POOL_TOKENS = 16
"""Smaller steps say little of that time."""
_CREDIBLE = 3.0
"""A step that took longer than this many times the mean counts as that."""
_REMEMBERED = 2000
"""Steps after which a mean that saw no other is forgotten. So a size that was slow for a while is tried again."""
_LEAST = 0.1
"""The part of a step that is not attention, at least."""


@dataclass(slots=True)
class _Mean:
    tokens: float
    seconds: float
    last_step: int


class StreamCost:
    """Learns from steps. What attention costs is taken from steps of prompts, and what nothing is known of yet, too."""

    def __init__(self, prompts: StepCost, *, tiled: bool) -> None:
        self._prompts = prompts
        self._cell_factor = ONE_BY_ONE if tiled else 1
        self._means: dict[int, _Mean] = {}
        self._tokens: list[float] = []
        self._seconds: list[float] = []
        self._steps = 0
        self._pool = 0.0

    @property
    def known(self) -> bool:
        """Whether there is anything to predict from."""
        return bool(self._means and self._prompts.per_token)

    def seconds(self, tokens: int, depth: float) -> float:
        """Predict a step of so many tokens; `depth` is the number of tokens before each, about."""
        return self._besides_depth(tokens) + self._attention(tokens, depth)

    def saw(self, tokens: int, depth: float, seconds: float) -> None:
        """Learn from a step."""
        self._steps += 1
        rest = max(seconds - self._attention(tokens, depth), _LEAST * seconds)
        size_class = bisect_left(_SIZES, tokens)
        mean = self._means.setdefault(size_class, _Mean(tokens, max(rest - self._pool * tokens, _LEAST * rest), 0))
        before = max(mean.seconds + self._pool * mean.tokens, _LEAST * mean.seconds)
        error = min(rest, _CREDIBLE * before) - before
        mean.tokens += _RATE * (tokens - mean.tokens)
        mean.seconds += _RATE * error
        limit = _POOL_CHANGE * before
        self._pool += _POOL_RATE * min(max(error, -limit), limit) * tokens / (tokens**2 + _POOL_TOKENS**2)
        mean.last_step = self._steps
        self._means = {
            size: mean for size, mean in sorted(self._means.items()) if self._steps - mean.last_step < _REMEMBERED
        }
        self._tokens = [mean.tokens for mean in self._means.values()]
        self._seconds = [mean.seconds for mean in self._means.values()]

    def _attention(self, tokens: int, depth: float) -> float:
        return self._prompts.per_attended_cell * self._cell_factor * depth * tokens

    def _besides_depth(self, tokens: int) -> float:
        curve = self._curve(tokens)
        return max(curve + self._pool * tokens, _LEAST * curve)

    def _curve(self, tokens: int) -> float:
        above = bisect_right(self._tokens, tokens)
        if not above:
            return self._seconds[0] * tokens / self._tokens[0]
        more = tokens - self._tokens[above - 1]
        if above == len(self._tokens):  # between what tokens cost so far and those of a prompt: so it may be tried
            return self._seconds[-1] + math.sqrt(self._slope(above - 1) * self._prompts.per_token) * more
        return self._seconds[above - 1] + self._slope(above) * more

    def _slope(self, above: int) -> float:
        """Return the seconds that each token adds below a mean."""
        if not above:
            return self._seconds[0] / self._tokens[0]
        more = self._tokens[above] - self._tokens[above - 1]
        return max(self._seconds[above] - self._seconds[above - 1], 0.0) / more
