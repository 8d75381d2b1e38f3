"""The token log of each session as the server keeps it, so that it outlives the worker (E1).

A worker tells what is new of a log when a turn is over (`Told`), and a new worker is handed all of them (`Recall`). The
server reads none of it. A row stands for a segment: the length and the digest of its text, and the tokens of those that
the model wrote; all others are cut again and come out the same. A fork's rows are those of the session it comes from.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from cfs_server.engine.frames import Recall, Told

BYTES = 16 << 20
"""What all logs may take together, counting what forks share for each; the least recently used go first."""
_ROW_BYTES = 64
_IN_FLIGHT = 10_000
"""So many forgotten sessions are remembered, for the worker may be telling of them at this moment."""


@dataclass(frozen=True, slots=True)
class _Log:
    owner: str
    rows: tuple[str, ...]
    size: int


class LogBook:
    """Holds what workers told. What is lost here costs only that a reply is cut into tokens anew after a crash."""

    def __init__(self, limit: int = BYTES) -> None:
        self._limit = limit
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._logs)

    def take(self, told: Told) -> bool:
        """Note what is new of a log; false when it goes on from one that is not here and must be told as a whole."""
        if told.cache_key in self._forgotten:
            return True
        before = self._logs.get(told.source)
        if told.keep > (len(before.rows) if before else 0):
            self._drop(told.cache_key)
            return False
        rows = (*(before.rows[: told.keep] if before else ()), *told.rows)
        self._drop(told.cache_key)
        self._logs[told.cache_key] = log = _Log(told.owner, rows, sum(map(_size, rows)))
        self.bytes += log.size
        while self.bytes > self._limit and len(self._logs) > 1:
            self._drop(next(iter(self._logs)))
        return True

    def begun(self, key: str) -> None:
        """Note that a session has a turn: it is there, even if one of its name was forgotten."""
        self._forgotten.pop(key, None)

    def forget(self, key: str, *, busy: bool) -> None:
        """Drop a session's log; while a worker is `busy`, what it may still tell of that session is not wanted."""
        self._drop(key)
        if busy:
            self._forgotten[key] = None
            while len(self._forgotten) > _IN_FLIGHT:
                self._forgotten.popitem(last=False)

    def recalls(self) -> Iterator[Recall]:
        """Hand over to a new worker, which tells nothing any more of sessions that are forgotten."""
        self._forgotten.clear()
        for key, log in self._logs.items():
            yield Recall(key, log.owner, list(log.rows))

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
