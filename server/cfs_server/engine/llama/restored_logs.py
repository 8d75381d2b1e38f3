"""The token logs of the previous worker, as the server stored them.

A log is parsed when its session continues or is copied.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from cfs_server.engine.chat.prompt import Piece
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.segments import Segment, read_rows

CANDIDATES = 16
"""Logs of an owner that a new session's prompt is compared with, the most recent first."""


class RestoredLogs:
    """Holds rows of text until they are needed; `spell` raises `IndexError` for an invalid token."""

    def __init__(self, tokenize: Callable[[str, bool], Tokens], spell: Callable[[int], bytes]) -> None:
        self._tokenize = tokenize
        self._spell = spell
        self._logs: OrderedDict[str, tuple[str, Sequence[str]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logs)

    def put(self, key: str, owner: str, rows: Sequence[str]) -> None:
        """Add a log."""
        self._logs[key] = owner, rows

    def forget(self, key: str) -> None:
        """Drop a log."""
        self._logs.pop(key, None)

    def find(self, key: str, owner: str, pieces: Sequence[Piece]) -> tuple[str, list[Segment]]:
        """Return the segments that a prompt begins with: of its session, or of the owner's session most like it."""
        if key in self._logs:
            return key, self._read(key, pieces)
        recent = (other for other, (whose, _) in reversed(self._logs.items()) if whose == owner)
        found = ((other, self._read(other, pieces)) for other in islice(recent, CANDIDATES))
        return max(found, key=lambda match: len(match[1]), default=("", []))

    def _read(self, key: str, pieces: Sequence[Piece]) -> list[Segment]:
        return list(read_rows(self._logs[key][1], pieces, self._tokenize, self._spell))
