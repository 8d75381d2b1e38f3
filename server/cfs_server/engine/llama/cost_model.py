"""Learns the cost of a step. `PromptBudget` uses it to divide the time of a step among prompts and streams.

On processors the library computes attention in tiles of 64 tokens, or token by token below that. Every token of a tile
attends to all cells that any token of the tile needs. So prompts in the same tile pay for each other, and a partly
filled tile costs as much as a full one. A single token attends only to its own cells, but each of them costs
`ONE_BY_ONE` times as much (measured: docs/engine.md). Far into a prompt it is therefore faster to pad a few tokens to a
full tile.
"""

from dataclasses import dataclass

# seconds = fixed + per_token * tokens + per_attended_cell * attended cells, fitted to recent steps.
#
# Each token attends to all cells before it, so a piece far into a prompt costs more. Each step moves the plane towards
# its own duration (normalised least mean squares). A step of few tokens adjusts the fixed part, one of many tokens the
# slope, and one far into a prompt the cost of an attended cell.

_RATE = 0.2
"""How much of an error the plane makes good at the next step of the same size."""
_CREDIBLE = 3.0
"""A step that took longer than this many times the prediction is an outlier (a page fault), unless the next is, too."""
_TYPICAL = 128
"""Tokens of a step whose error is put down to fixed part and tokens equally; those of a longer one are half its cost
at least, where it attends to no cells before it."""
_TYPICAL_CELLS = _TYPICAL * 1024
"""Attended cells of a step that take as much of an error as those tokens."""
_CELL_SHARE = 2e-4
"""First guess of the cost of an attended cell, relative to that of a token. Measured: 6e-4 and 2.5e-4 with models of 54
and 500 million parameters; larger models have less."""


@dataclass(slots=True)
class StepCost:
    """A plane that learns; seconds. All parts are zero until the first step, whose time is halved between two."""

    fixed: float = 0.0
    per_token: float = 0.0
    per_attended_cell: float = 0.0
    doubted: bool = False

    def seconds(self, tokens: float, cells: float = 0.0) -> float:
        """Predict how long a step takes, given its tokens and the cells that they attend to together."""
        return self.fixed + self.per_token * tokens + self.per_attended_cell * cells

    def credible(self, seconds: float, tokens: float, cells: float = 0.0) -> float:
        """Limit the duration of a step to the time that its work explains; the rest is an outlier."""
        expected = self.seconds(tokens, cells)
        return min(seconds, _CREDIBLE * expected) if expected else seconds

    def saw(self, tokens: int, seconds: float, cells: float = 0.0) -> None:
        """Learn from a step. A step that took less than half the expected time is accepted at once."""
        expected = self.seconds(tokens, cells)
        if not expected:
            self.fixed, self.per_token = seconds / 2, seconds / 2 / tokens
            self.per_attended_cell = _CELL_SHARE * self.per_token if cells else 0.0
            return
        doubted, self.doubted = self.doubted, seconds > _CREDIBLE * expected
        believed = seconds < expected / 2 or (doubted and self.doubted)
        change = seconds - expected if believed else _RATE * (min(seconds, _CREDIBLE * expected) - expected)
        self._move(tokens, cells, expected + change, change)

    def _move(self, tokens: int, cells: float, aim: float, change: float) -> None:
        """Move the plane to `aim` at this step."""
        size, depth = tokens / _TYPICAL, cells / _TYPICAL_CELLS
        step = change / (1 + size * size + depth * depth)
        if cells:
            self.per_attended_cell = min(max(self.per_attended_cell + step * depth / _TYPICAL_CELLS, 0.0), aim / cells)
        rest = aim - self.per_attended_cell * cells
        minimum = rest / 2 / tokens if tokens >= _TYPICAL else 0.0
        self.per_token = min(max(self.per_token + step * size / _TYPICAL, minimum), rest / tokens)
        self.fixed = rest - self.per_token * tokens


TILE = 64
"""Tokens that flash attention computes together (`GGML_FA_TILE_Q` of the library)."""
ONE_BY_ONE = 11
"""Cost of an attended cell outside of a tile, relative to its cost inside."""


def whole(tokens: int) -> int:
    """Round down to full tiles."""
    return tokens // TILE * TILE


def padding(tokens: int, cells: float, cost: StepCost) -> int:
    """Return how many padding tokens make a step of less than a tile quicker; 0 for none."""
    if not 0 < tokens < TILE:
        return 0
    more = TILE - tokens
    saved = cost.per_attended_cell * cells * (ONE_BY_ONE - TILE / tokens)
    return more if saved > cost.per_token * more else 0


def counted(needed: int, size: int, cells: float) -> float:
    """Convert the attended cells of `needed` tokens, padded to a step of `size`, to their cost inside of a tile."""
    return cells * (size / needed if size >= TILE else ONE_BY_ONE)
