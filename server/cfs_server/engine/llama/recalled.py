"""Token logs of the worker before this one, as the server kept them: read when their sessions go on, or are copied."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from cfs_server.engine.chat.templates import Piece
from cfs_server.engine.llama import log_rows
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.segment import Segment

CANDIDATES = 16
"""Logs of an owner that a new session's prompt is compared with, the most recent first."""


class Recalled:
    """Holds rows of text until somebody needs them; `spell` raises `IndexError` for what is no token."""

    def __init__(self, tokenize: Callable[[str, bool], Tokens], spell: Callable[[int], bytes]) -> None:
        self._tokenize = tokenize
        self._spell = spell
        self._logs: OrderedDict[str, tuple[str, Sequence[str]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logs)

    def put(self, key: str, owner: str, rows: Sequence[str]) -> None:
        """Take in a log."""
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
        return list(log_rows.read(self._logs[key][1], pieces, self._tokenize, self._spell))
