"""Log-probabilities of the tokens that were chosen, for those who ask.

They are the model's own: of the logits as they come, before temperature, `top_k`, `top_p`, `min_p` and grammar, as
other servers report them too.
"""

from collections import deque

import numpy as np

from cfs_server.engine.frames import Rank
from cfs_server.engine.llama.candidates import Logits, most_probable
from cfs_server.engine.llama.text import TextStream
from cfs_server.engine.llama.vocabulary import Vocabulary

NEVER = -9999.0
"""Stands for the logarithm of nothing, which JSON cannot say."""

Ranked = list[tuple[int, float]]
"""Tokens and their log-probabilities: the one that was chosen, then the most probable ones in their order."""


def rank(logits: Logits, token: int, count: int) -> Ranked:
    """Compute the log-probabilities of a token and of the `count` most probable ones."""
    exact = logits.astype(np.float64)
    total = np.log(np.exp(exact - exact.max()).sum()) + exact.max()
    found = most_probable(logits, count)
    best = np.arange(len(logits), dtype=np.int32) if found is None else found
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
        """Return those of tokens that are shown; at the end also of the one that is shown in part.

        What a stop string or the white space behind a reply takes with it is not reported.
        """
        taken = []
        while self._waiting:
            start, end, ranks = self._waiting[0]
            if end > text.settled and not (text.stopped and start < text.settled):
                break
            taken.append(ranks)
            self._waiting.popleft()
        return taken
