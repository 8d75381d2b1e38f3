"""Samples all outputs of a step.

It runs on the engine's thread, or on a few more threads when that is faster.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest

from cfs.errors import CfsError
from cfs_server.engine.worker.candidates import Candidates, Logits
from cfs_server.engine.worker.sampling import Sampler

PAYS_FROM = 300_000
"""Tokens that a step's samplers look at one by one: 3 ms of work, when the hand-over costs 0.1 ms (measured)."""


MOST_THREADS = 4


Choice = int | CfsError
"""The token of an output, or why there is none."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The outputs of one turn: a row of logits, and one more for each token of its draft."""

    sampler: Sampler
    rows: Logits
    draft: Sequence[int] = ()


class SamplerPool:
    """Chooses tokens. A sampler belongs to one turn and a buffer to one thread, so nothing is shared.

    Native code runs without Python's lock; the tokens are the same with and without threads. `close` ends them.
    """

    def __init__(self, vocabulary: int, threads: int) -> None:
        self._vocabulary = vocabulary
        self._buffers = [Candidates(vocabulary)]
        self._helpers = min(threads, MOST_THREADS) - 1
        self._threads: ThreadPoolExecutor | None = None

    def choose(self, samplers: Sequence[Sampler], rows: Logits) -> list[Choice]:
        """Choose a token for each sampler from its row of logits."""
        draws = [Draw(sampler, rows[place : place + 1]) for place, sampler in enumerate(samplers)]
        return [choice for (choice,) in self.verify(draws)]

    def verify(self, draws: Sequence[Draw]) -> list[list[Choice]]:
        """Choose tokens for each sampler, for as long as its choices are the draft's: one at least."""
        if len(draws) < 2 or self._helpers < 1 or not self._pays(draws):
            return _verify(draws, self._buffers[0])
        if self._threads is None:
            self._buffers += [Candidates(self._vocabulary) for _ in range(self._helpers)]
            self._threads = ThreadPoolExecutor(self._helpers, "sampler")
        parts = range(min(len(draws), self._helpers + 1))
        step = len(parts)
        others = [self._threads.submit(_verify, draws[part::step], self._buffers[part]) for part in parts[1:]]
        choices: list[list[Choice]] = [[] for _ in draws]
        choices[0::step] = _verify(draws[0::step], self._buffers[0])
        for part, other in zip(parts[1:], others, strict=True):
            choices[part::step] = other.result()
        return choices

    def close(self) -> None:
        """End the threads, if there are any."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _pays(self, draws: Sequence[Draw]) -> bool:
        return sum(draw.sampler.weight(self._vocabulary) for draw in draws) >= PAYS_FROM


def _verify(draws: Sequence[Draw], buffer: Candidates) -> list[list[Choice]]:
    return [_tokens(draw, buffer) for draw in draws]


def _tokens(draw: Draw, buffer: Candidates) -> list[Choice]:
    choices: list[Choice] = []
    try:
        for row, guess in zip_longest(draw.rows, draw.draft):
            choices.append(draw.sampler.sample(row, buffer))
            if choices[-1] != guess:
                break
    except CfsError as error:
        choices.append(error)
    return choices
