"""The number of tokens of a step.

A step is one token of every stream, or pieces of prompts as large as its time allows. The two kinds of steps
alternate while there are both, so a stream waits for one piece at most. In a mixed batch every token would pay for
the cells of all (see `cost_model`). The cost is learned separately for the two kinds of steps.
"""

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from cfs_server.engine.llama.cost_model import TILE, StepCost, padding, whole

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

    def saw_step(self, tokens: int, seconds: float, prompt_cells: float | None = None, *, drafts: bool = False) -> None:
        """Learn from a step. `prompt_cells` is None for steps with streams, even with a small piece of a prompt.

        A step with `drafts` says nothing about the cost of a token of a stream.
        """
        self._streams_next = prompt_cells is not None
        if drafts:
            return
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

    def longest(self, *, alone: bool) -> float:
        """Return how many seconds a step of streams may take; longer if there is one turn only."""
        return self._step_seconds * (ALONE if alone else 1)

    def reply_seconds(self, streams: int) -> float:
        """Predict how long a token of a reply takes among so many; before the first, as long as one of a prompt."""
        cost = self.streams if self.streams.seconds(1) else self.cost
        return cost.seconds(streams) / streams

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
        max_tokens = min(self._step_tokens, self._reach) if streams else self._step_tokens
        min_tokens = TILE if streams else MIN_ALONE
        left = max(self._seconds(streams), self._work(min_tokens, min(map(depth, prompts))))
        shares: dict[Turn, int] = {}
        unserved: list[Turn] = []
        saved = 0.0
        shortest_first = sorted((count, index, turn) for index, (turn, count) in enumerate(prompts.items()))
        for index, (count, _, turn) in enumerate(shortest_first):
            part = left / (len(prompts) - index)
            if tokens := self._piece(count, self._fitting(part, depth(turn)), max_tokens):
                shares[turn] = tokens
                max_tokens -= tokens
                left -= self._work(tokens, depth(turn))
            else:
                unserved.append(turn)
                saved += part
                left -= part
        if unserved:
            turn = unserved[self._pieces % len(unserved)]
            fits = self._fitting(saved + max(0.0, left), depth(turn))
            if tokens := self._piece(prompts[turn], fits if shares else max(TILE, fits), max_tokens):
                shares[turn] = tokens
        return shares

    def _piece(self, count: int, fits: int, limit: int) -> int:
        """Cut a piece of a prompt: all of it if that fits, or about as many full tiles."""
        return count if count <= min(fits, limit) else min(count, whole(fits + TILE // 2), whole(limit))

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
        per_token, more = self.cost.per_token + self.cost.per_attended_cell * depth, self.cost.per_attended_cell
        if not per_token:
            return 2 * TILE
        seconds = max(0.0, seconds)
        tokens = (
            2 * seconds / (per_token + math.sqrt(per_token * per_token + 2 * more * seconds))
        )  # each * n + more * n * n / 2
        return int(min(self._step_tokens, tokens + _ROUNDING))
