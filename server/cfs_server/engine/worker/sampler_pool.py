"""Samples all outputs of a step.

It runs on the engine's thread, or on a few more threads when that is faster.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cfs.errors import CfsError
from cfs_server.engine.worker.candidates import Candidates, Logits
from cfs_server.engine.worker.sampling import Sampler

PAYS_FROM = 300_000
"""Tokens that a step's samplers look at one by one: 3 ms of work, when the hand-over costs 0.1 ms (measured)."""


MOST_THREADS = 4


Choice = int | CfsError
"""The token of an output, or why there is none."""


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
        if len(samplers) < 2 or self._helpers < 1 or not self._pays(samplers):
            return _choose(samplers, rows, self._buffers[0])
        if self._threads is None:
            self._buffers += [Candidates(self._vocabulary) for _ in range(self._helpers)]
            self._threads = ThreadPoolExecutor(self._helpers, "sampler")
        parts = range(min(len(samplers), self._helpers + 1))
        step = len(parts)
        others = [
            self._threads.submit(_choose, samplers[part::step], rows[part::step], self._buffers[part])
            for part in parts[1:]
        ]
        choices: list[Choice] = [0] * len(samplers)
        choices[0::step] = _choose(samplers[0::step], rows[0::step], self._buffers[0])
        for part, other in zip(parts[1:], others, strict=True):
            choices[part::step] = other.result()
        return choices

    def close(self) -> None:
        """End the threads, if there are any."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _pays(self, samplers: Sequence[Sampler]) -> bool:
        return sum(sampler.weight(self._vocabulary) for sampler in samplers) >= PAYS_FROM


def _choose(samplers: Sequence[Sampler], rows: Logits, buffer: Candidates) -> list[Choice]:
    choices: list[Choice] = []
    for sampler, row in zip(samplers, rows, strict=True):
        try:
            choices.append(sampler.sample(row, buffer))
        except CfsError as error:
            choices.append(error)
    return choices
