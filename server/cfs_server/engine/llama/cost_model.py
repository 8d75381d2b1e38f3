"""Estimates the cost of a step and sets the number of tokens of each step.

`StepCost` learns the cost of steps. `PromptBudget` uses it to divide the time of a step among prompts and streams.

On processors the library computes attention in tiles of 64 tokens, or token by token below that. Every token of a tile
attends to all cells that any token of the tile needs. So prompts in the same tile pay for each other, and a partly
filled tile costs as much as a full one. A single token attends only to its own cells, but each of them costs
`ONE_BY_ONE` times as much (measured: docs/engine.md). Far into a prompt it is therefore faster to pad a few tokens to a
full tile.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

# -- the cost of a step -----------------------------------------------------------------------------------------------
#
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
        least = rest / 2 / tokens if tokens >= _TYPICAL else 0.0
        self.per_token = min(max(self.per_token + step * size / _TYPICAL, least), rest / tokens)
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


# -- the number of tokens of a step -----------------------------------------------------------------------------------
#
# A step is one token of every stream, or pieces of prompts as large as its time allows. The two kinds of steps
# alternate while there are both, so a stream waits for one piece at most. In a mixed batch every token would pay for
# the cells of all (see the module's docstring). The cost is learned separately for the two kinds of steps.

MIN_ALONE = 256
"""Fewest tokens of a step without streams. On a slow model that may take seconds, for which a new turn waits."""
ALONE = 4
"""Without streams a step may take this many times longer: only a cancel or a new turn waits for its end."""
LONGER = 0.25
"""Where streams alone take too long already, a piece of a prompt may take this part of their time."""

_ROUNDING = 1e-6

Turn = TypeVar("Turn")


def attended_cells(tokens: float, depth: int) -> float:
    """Count the cells to which so many tokens attend together, behind `depth` others."""
    return tokens * (depth + tokens / 2)


class PromptBudget:
    """Shares the steps between streams (one token each) and prompts (equal parts of the time, in full tiles)."""

    def __init__(
        self, step_tokens: int, step_seconds: float, cost: StepCost | None = None, streams: StepCost | None = None
    ) -> None:
        self.cost = cost if cost is not None else StepCost()
        """Of steps with prompts."""
        self.streams = streams if streams is not None else StepCost()
        """Of steps without."""
        self._step_tokens = step_tokens
        self._step_seconds = step_seconds
        self._reach = TILE
        self._streams_next = False
        self._pieces = 0

    def share(self, pending: Mapping[Turn, int], depth: Callable[[Turn], int] = lambda _turn: 0) -> dict[Turn, int]:
        """Return how many pending tokens of each turn the next step computes; `depth` counts those before them."""
        streams = {turn: 1 for turn, count in pending.items() if count == 1}
        if len(streams) == len(pending):
            self._reach = TILE
            return streams
        prompts = {turn: count for turn, count in pending.items() if count > 1}
        if not streams:
            return self._pieces_of(prompts, depth, 0)
        if self._fit_together(len(streams), prompts, depth):
            return dict(pending)
        return streams if self._streams_next else self._pieces_of(prompts, depth, len(streams))

    def saw_step(self, tokens: int, seconds: float, prompt_cells: float | None = None) -> None:
        """Learn from a step. `prompt_cells` is None for steps with streams, even with a small piece of a prompt."""
        self._streams_next = prompt_cells is not None
        if prompt_cells is None:
            self.streams.saw(tokens, seconds)
        else:
            self.cost.saw(tokens, seconds, prompt_cells)
            self._reach = min(2 * self._reach, max(TILE, self._step_tokens))
            self._pieces += 1

    def credible(self, tokens: int, seconds: float, prompt_cells: float | None = None) -> float:
        """Limit a step's duration to the time charged to turns; a suspension of the machine does not count."""
        if prompt_cells is None:
            return self.streams.credible(seconds, tokens)
        return self.cost.credible(seconds, tokens, prompt_cells)

    def seconds(self, tokens: float) -> float:
        """Predict how long prompts of so many tokens take, in steps without streams."""
        return tokens * (self.cost.per_token + self.cost.fixed / max(1, self._fitting(self._seconds(0), 0)))

    def step_seconds(self, shares: Mapping[Turn, int], depth: Callable[[Turn], int]) -> float:
        """Predict how long a step of these tokens takes; 0 before anything is known."""
        streams = self.reply_seconds(len(shares)) * len(shares)
        if all(count == 1 for count in shares.values()):
            return streams
        return self.cost.seconds(
            sum(shares.values()), sum(attended_cells(count, depth(turn)) for turn, count in shares.items())
        )

    def reply_seconds(self, streams: int) -> float:
        """Predict how long a token of a reply takes among so many; before the first, as long as one of a prompt."""
        known = self.streams if self.streams.seconds(1) else self.cost
        return known.seconds(streams) / streams

    def _fit_together(self, streams: int, prompts: Mapping[Turn, int], depth: Callable[[Turn], int]) -> bool:
        """Whether all pending tokens are less than a tile and near the beginning: sharing costs nothing there."""
        tokens = sum(prompts.values())
        if streams + tokens >= TILE:
            return False
        return not padding(
            tokens, sum(attended_cells(count, depth(turn)) for turn, count in prompts.items()), self.cost
        )

    def _pieces_of(self, prompts: Mapping[Turn, int], depth: Callable[[Turn], int], streams: int) -> dict[Turn, int]:
        """Give each prompt an equal part of the time. Parts too short for a tile go to one of those prompts."""
        most = min(self._step_tokens, self._reach) if streams else self._step_tokens
        least = TILE if streams else MIN_ALONE
        left = max(self._seconds(streams), self._work(least, min(map(depth, prompts))))
        shares: dict[Turn, int] = {}
        unserved: list[Turn] = []
        saved = 0.0
        shortest_first = sorted((count, place, turn) for place, (turn, count) in enumerate(prompts.items()))
        for place, (count, _, turn) in enumerate(shortest_first):
            part = left / (len(prompts) - place)
            if tokens := self._piece(count, self._fitting(part, depth(turn)), most):
                shares[turn] = tokens
                most -= tokens
                left -= self._work(tokens, depth(turn))
            else:
                unserved.append(turn)
                saved += part
                left -= part
        if unserved:
            turn = unserved[self._pieces % len(unserved)]
            fits = self._fitting(saved + max(0.0, left), depth(turn))
            if tokens := self._piece(prompts[turn], fits if shares else max(TILE, fits), most):
                shares[turn] = tokens
        return shares

    def _piece(self, count: int, fits: int, most: int) -> int:
        """Cut a piece of a prompt: all of it if that fits, or about as many full tiles."""
        return count if count <= min(fits, most) else min(count, whole(fits + TILE // 2), whole(most))

    def _seconds(self, streams: int) -> float:
        """Return how many seconds a piece of a prompt may take."""
        if not streams:
            return self._step_seconds * ALONE - self.cost.fixed
        taken = self.streams.seconds(streams)
        return max(self._step_seconds - taken, LONGER * taken) - self.cost.fixed

    def _work(self, tokens: int, depth: int) -> float:
        """Predict how long a piece takes but for the fixed part of its step."""
        return self.cost.per_token * tokens + self.cost.per_attended_cell * attended_cells(tokens, depth)

    def _fitting(self, seconds: float, depth: int) -> int:
        """Find how many tokens behind `depth` others fit into so many seconds; two tiles while nothing is known."""
        each, more = self.cost.per_token + self.cost.per_attended_cell * depth, self.cost.per_attended_cell
        if not each:
            return 2 * TILE
        seconds = max(0.0, seconds)
        tokens = 2 * seconds / (each + math.sqrt(each * each + 2 * more * seconds))  # each * n + more * n * n / 2
        return int(min(self._step_tokens, tokens + _ROUNDING))
