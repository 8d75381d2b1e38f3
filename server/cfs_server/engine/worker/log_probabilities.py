"""Log-probabilities of the chosen tokens, for turns that request them.

They are the model's own, as in other servers: before bias, penalties, temperature, filters and grammar.
"""

from collections import deque

import numpy as np

from cfs_server.engine.contract.protocol import Rank
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.candidates import Logits, most_probable
from cfs_server.engine.worker.text import TextStream

NEVER = -9999.0
"""Represents minus infinity, which JSON does not have."""


Ranked = list[tuple[int, float]]
"""Tokens and their log-probabilities: the one that was chosen, then the most probable ones in their order."""


def rank(logits: Logits, token: int, count: int) -> Ranked:
    """Compute the log-probabilities of a token and of the `count` most probable ones."""
    exact = logits.astype(np.float64)
    total = np.log(np.exp(exact - exact.max()).sum()) + exact.max()
    candidates = most_probable(logits, count)
    best = np.arange(len(logits), dtype=np.int32) if candidates is None else candidates
    best = best[np.argsort(-exact[best], kind="stable")][:count]
    return [(number, max(float(exact[number] - total), NEVER)) for number in (token, *best.tolist())]


class Reported:
    """Holds the log-probabilities of tokens until the text of those tokens is shown."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[tuple[int, int, list[Rank]]] = deque()
        self._fed = 0

    def add(self, ranked: Ranked, text: TextStream) -> None:
        """Note a token that was fed to the text last."""
        ranks = [Rank(self._vocabulary.piece(token).decode("latin-1"), value) for token, value in ranked]
        self._waiting.append((self._fed, text.needed, ranks))
        self._fed = text.needed

    def take(self, text: TextStream) -> list[list[Rank]]:
        """Return those of the shown tokens; at the end also of a token that is shown in part.

        Tokens removed by a stop string or as white space after a reply are not reported.
        """
        taken = []
        while self._waiting:
            start, end, ranks = self._waiting[0]
            if end > text.settled and not (text.stopped and start < text.settled):
                break
            taken.append(ranks)
            self._waiting.popleft()
        return taken
