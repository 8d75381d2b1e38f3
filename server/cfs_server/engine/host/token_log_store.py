"""The token logs of all sessions: the server stores them, so they survive the worker (E1).

At the end of each turn the worker sends the new part of the session's log (`TokenLogDelta`). A new worker gets all
logs back (`TokenLogRestore`). The server does not interpret them. A row stands for one segment: the length and the
digest of its text and, for text of the model, its tokens. All other text is tokenized again, with the same result. A
fork begins with the rows of its source session.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from cachetools import LRUCache

from cfs_server.engine.contract.protocol import (
    TokenLogDelta,
    TokenLogRestore,
)

BYTES = 16 << 20
"""The size limit of all logs; each fork counts in full, and the least recently used are dropped first."""


_ROW_BYTES = 64


_IN_FLIGHT = 10_000
"""Forgotten sessions that are remembered: deltas of them may be on their way."""


@dataclass(frozen=True, slots=True)
class _Log:
    owner: str
    rows: tuple[str, ...]
    size: int


class TokenLogStore:
    """Stores token logs. A log that is dropped costs only that its replies are tokenized again after a crash."""

    def __init__(self, limit: int = BYTES) -> None:
        self._limit = limit
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        self._forgotten: LRUCache[str, None] = LRUCache(_IN_FLIGHT)
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._logs)

    def apply(self, delta: TokenLogDelta) -> bool:
        """Apply a delta; return false when its source is not stored, so that the whole log must be sent."""
        if delta.cache_key in self._forgotten:
            return True
        before = self._logs.get(delta.source)
        if delta.keep > (len(before.rows) if before else 0):
            self._drop(delta.cache_key)
            return False
        rows = (*(before.rows[: delta.keep] if before else ()), *delta.rows)
        self._drop(delta.cache_key)
        self._logs[delta.cache_key] = log = _Log(delta.owner, rows, sum(map(_size, rows)))
        self.bytes += log.size
        while self.bytes > self._limit and len(self._logs) > 1:
            self._drop(next(iter(self._logs)))
        return True

    def begun(self, key: str) -> None:
        """Note that a session has a turn: it exists, even if one of the same name was deleted."""
        self._forgotten.pop(key, None)

    def forget(self, key: str, *, busy: bool) -> None:
        """Drop a session's log. While a worker is `busy`, deltas of that session that are on their way are ignored."""
        self._drop(key)
        if busy:
            self._forgotten[key] = None

    def restores(self) -> Iterator[TokenLogRestore]:
        """Make the frames for a new worker, which sends no deltas of forgotten sessions any more."""
        self._forgotten.clear()
        for key, log in self._logs.items():
            yield TokenLogRestore(key, log.owner, list(log.rows))

    def check_integrity(self) -> list[str]:
        """Compare the sizes with the rows; every line is a violation."""
        sizes = {key: sum(map(_size, log.rows)) for key, log in self._logs.items()}
        booked = {key: log.size for key, log in self._logs.items()}
        good = sizes == booked and sum(sizes.values()) == self.bytes
        return [] if good else ["the server's token logs and their sizes do not agree"]

    def _drop(self, key: str) -> None:
        if (log := self._logs.pop(key, None)) is not None:
            self.bytes -= log.size


def _size(row: str) -> int:
    return _ROW_BYTES + len(row)
