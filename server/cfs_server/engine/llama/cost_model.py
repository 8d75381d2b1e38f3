"""How the library's attention on processors counts tokens: in tiles of 64, or one by one where there are fewer.

Every token of a tile looks at all cells that any of them needs, so the prompts of others in a tile are paid twice, and
a tile that is not full costs what a full one does. One by one, a token looks at its own cells only, but each look costs
`ONE_BY_ONE` times as much (measured: docs/engine.md). So few tokens far into a prompt are computed sooner when
others, which nobody needs, fill up their tile.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

# What a step costs: seconds = fixed + per_token * tokens + per_look * looks, fitted to what steps took here lately.
#
# A look is one token that attends to one cell: what a prompt costs grows with what is before it. Each step moves the
# plane towards what it took (normalised least mean squares): one of few tokens moves the fixed part, one of many the
# slope, one far into a prompt what a look costs.

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


TILE = 64
"""Tokens that flash attention computes together (`GGML_FA_TILE_Q` of the library)."""
ONE_BY_ONE = 11
"""What a look costs outside of a tile, by what it costs inside."""


def whole(tokens: int) -> int:
    """Round down to full tiles."""
    return tokens // TILE * TILE


def padding(tokens: int, looks: float, cost: StepCost) -> int:
    """Say how many tokens that nobody needs make a step of fewer than a tile shorter, if any do."""
    if not 0 < tokens < TILE:
        return 0
    more = TILE - tokens
    saved = cost.per_look * looks * (ONE_BY_ONE - TILE / tokens)
    return more if saved > cost.per_token * more else 0


def counted(needed: int, size: int, looks: float) -> float:
    """Count the looks of `needed` tokens, filled up to a step of `size`, in the price of a look inside of a tile."""
    return looks * (size / needed if size >= TILE else ONE_BY_ONE)


# How many tokens a step takes: streams and prompts take turns while both are there.
#
# A step is one token of every stream, or pieces of prompts as large as its time allows: the attention of a batch that
# holds both would pay for the cells of both with every token (`tiles`). So a stream stands still for one piece at most.
# What a step costs is learnt as the engine runs (`costs`), for the two kinds of steps apart.

MIN_ALONE = 256
"""Tokens that a step takes at least where nobody streams. On a slow model that may take seconds: a new turn waits."""
ALONE = 4
"""Without streams a step may take so many times longer: only a cancel or a new turn waits for its end."""
LONGER = 0.25
"""Where a step without any prompt takes too long already, a piece of a prompt may take this part of that time."""

_ROUNDING = 1e-6

Turn = TypeVar("Turn")


def looks(tokens: float, depth: int) -> float:
    """Count the cells that so many tokens look at together that follow `depth` others."""
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
        """Say how many of its pending tokens each turn computes in the next step, given how many it has behind it."""
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

    def saw_step(self, tokens: int, seconds: float, prompt_looks: float | None = None) -> None:
        """Learn from a step; those without a piece of a prompt, or with a small one among streams, have no looks."""
        self._streams_next = prompt_looks is not None
        if prompt_looks is None:
            self.streams.saw(tokens, seconds)
        else:
            self.cost.saw(tokens, seconds, prompt_looks)
            self._reach = min(2 * self._reach, max(TILE, self._step_tokens))
            self._pieces += 1

    def credible(self, tokens: int, seconds: float, prompt_looks: float | None = None) -> float:
        """Cut what a step took to what its turns can be charged for; a machine that stood still is nobody's fault."""
        if prompt_looks is None:
            return self.streams.credible(seconds, tokens)
        return self.cost.credible(seconds, tokens, prompt_looks)

    def seconds(self, tokens: float) -> float:
        """Predict how long prompts of so many tokens take, in steps without streams."""
        return tokens * (self.cost.per_token + self.cost.fixed / max(1, self._fitting(self._seconds(0), 0)))

    def step_seconds(self, shares: Mapping[Turn, int], depth: Callable[[Turn], int]) -> float:
        """Predict how long a step of these tokens takes; 0 before anything is known."""
        streams = self.reply_seconds(len(shares)) * len(shares)
        if all(count == 1 for count in shares.values()):
            return streams
        return self.cost.seconds(sum(shares.values()), sum(looks(count, depth(turn)) for turn, count in shares.items()))

    def reply_seconds(self, streams: int) -> float:
        """Predict how long a token of a reply takes among so many; before the first, as long as one of a prompt."""
        known = self.streams if self.streams.seconds(1) else self.cost
        return known.seconds(streams) / streams

    def _fit_together(self, streams: int, prompts: Mapping[Turn, int], depth: Callable[[Turn], int]) -> bool:
        """Whether all that is pending is less than a tile, and near the beginning: then nobody pays for the others."""
        tokens = sum(prompts.values())
        if streams + tokens >= TILE:
            return False
        return not padding(tokens, sum(looks(count, depth(turn)) for turn, count in prompts.items()), self.cost)

    def _pieces_of(self, prompts: Mapping[Turn, int], depth: Callable[[Turn], int], streams: int) -> dict[Turn, int]:
        """Give each prompt an equal part of the time; parts too short for a tile go to one of those, in turns."""
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
        """Say how long a piece of a prompt may take."""
        if not streams:
            return self._step_seconds * ALONE - self.cost.fixed
        taken = self.streams.seconds(streams)
        return max(self._step_seconds - taken, LONGER * taken) - self.cost.fixed

    def _work(self, tokens: int, depth: int) -> float:
        """Predict how long a piece takes but for the fixed part of its step."""
        return self.cost.per_token * tokens + self.cost.per_look * looks(tokens, depth)

    def _fitting(self, seconds: float, depth: int) -> int:
        """Find how many tokens behind `depth` others take so long; as many as a step has while nothing is known."""
        each, more = self.cost.per_token + self.cost.per_look * depth, self.cost.per_look
        if not each:
            return 2 * TILE
        seconds = max(0.0, seconds)
        tokens = 2 * seconds / (each + math.sqrt(each * each + 2 * more * seconds))  # each * n + more * n * n / 2
        return int(min(self._step_tokens, tokens + _ROUNDING))
