"""Changes of logits before a token is chosen: `logit_bias`, penalties, `min_tokens`.

The order is llama.cpp's: bias, then penalties. Each step changes one row of logits with a few NumPy operations, so a
token costs the same however long the reply is.
"""

from collections import Counter, deque
from collections.abc import Collection
from typing import Self

import numpy as np

from cfs.errors import TokenRefused
from cfs.wire import Settings
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.worker.candidates import Logits

_NEVER = np.float32(1e4)
"""Makes a token impossible beside any other one. Infinity would leave no order where a grammar allows nothing else."""


class LogitChanges:
    """The changes of one reply. They depend on its earlier tokens: `accept` each one, once."""

    def __init__(self, settings: Settings, vocabulary: int, ends: Collection[int], prompt: Tokens) -> None:
        self._settings = settings
        self._left = settings.min_tokens
        self._ends = ends
        self._end_tokens = np.array(sorted(ends), dtype=np.int32)
        bias = settings.logit_bias or {}
        self._biased = np.array([int(token) for token in bias], dtype=np.int32)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self._window = settings.repeat_last_n if settings.repeat_penalty != 1 else 0
        self._recent: deque[int] = deque()
        self._repeated: Counter[int] = Counter()
        if self._window:
            for token in prompt[-self._window if self._window > 0 else None :].tolist():
                self._repeat(token)
        penalized = settings.presence_penalty or settings.frequency_penalty
        self._penalties = np.zeros(vocabulary, dtype=np.float32) if penalized else None
        self._said: set[int] = set()

    @classmethod
    def of(cls, settings: Settings, vocabulary: int, ends: Collection[int], prompt: Tokens) -> Self | None:
        """Make the changes that settings ask for; `None` without any. Raises `TokenRefused`.

        `vocabulary` is its number of tokens, and `ends` are those that end a reply.
        """
        unknown = [token for token in settings.logit_bias or () if int(token) >= vocabulary]
        if unknown:
            raise TokenRefused(
                f"logit_bias: there is no token {unknown[0]}: the model's tokens are 0 to {vocabulary - 1}"
            )
        repeats = settings.repeat_penalty != 1 and settings.repeat_last_n
        penalized = settings.presence_penalty or settings.frequency_penalty
        if not (settings.logit_bias or repeats or penalized or settings.min_tokens):
            return None
        return cls(settings, vocabulary, ends, prompt)

    def applied(self, logits: Logits) -> Logits:
        """Return changed logits; the given ones stay as they are."""
        changed = logits.copy()
        changed[self._biased] += self._bias
        if self._repeated:
            tokens = np.fromiter(self._repeated, dtype=np.int32, count=len(self._repeated))
            values, penalty = changed[tokens], np.float32(self._settings.repeat_penalty)
            changed[tokens] = np.where(values > 0, values / penalty, values * penalty)
        if self._penalties is not None:
            changed -= self._penalties
        if self._left > 0:
            changed[self._end_tokens] -= _NEVER
        return changed

    def accept(self, token: int) -> None:
        """Note a token of the reply."""
        self._left -= 1
        if self._window:
            self._repeat(token)
        if self._penalties is not None:
            self._penalties[token] += self._settings.frequency_penalty
            if token not in self._said:
                self._said.add(token)
                self._penalties[token] += self._settings.presence_penalty

    def _repeat(self, token: int) -> None:
        if token in self._ends:  # one ends each message of the prompt: a penalty would keep the reply from ending
            return
        self._recent.append(token)
        self._repeated[token] += 1
        if len(self._recent) > self._window > 0:
            old = self._recent.popleft()
            self._repeated[old] -= 1
            if not self._repeated[old]:
                del self._repeated[old]
