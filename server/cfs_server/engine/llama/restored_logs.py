"""The token logs of the previous worker: as the server stored them, or as files of state name their tokens.

A log is parsed when its session continues or is copied.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from cfs_server.engine.chat.prompt import Piece
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.segments import Segment, read_rows, read_tokens

MOST_TOKENS = 16 << 20
"""Tokens of all files of state that are remembered, four bytes each."""
Cuts = Callable[[Piece, int], Iterator[str]]
"""Cuts the rest of a piece into the texts of segments."""
CANDIDATES = 16
"""Logs of an owner that a new session's prompt is compared with, the most recent first."""


class RestoredLogs:
    """Holds rows of text until they are needed; `spell` raises `IndexError` for an invalid token."""

    def __init__(self, tokenize: Callable[[str, bool], Tokens], spell: Callable[[int], bytes]) -> None:
        self._tokenize = tokenize
        self._spell = spell
        self._logs: OrderedDict[str, tuple[str, Sequence[str]]] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[str, Tokens]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return len(self._logs)

    def put(self, key: str, owner: str, rows: Sequence[str]) -> None:
        """Add a log."""
        self._logs[key] = owner, rows

    def put_tokens(self, key: str, owner: str, tokens: Tokens) -> None:
        """Add the tokens of a session, without those that begin every prompt."""
        if self._count + len(tokens) <= MOST_TOKENS:
            self._tokens[key] = owner, tokens
            self._count += len(tokens)

    def forget(self, key: str) -> None:
        """Drop a log."""
        self._logs.pop(key, None)
        _, tokens = self._tokens.pop(key, ("", ()))
        self._count -= len(tokens)

    def find(self, key: str, owner: str, pieces: Sequence[Piece], cuts: Cuts) -> tuple[str, list[Segment]]:
        """Return the segments that a prompt begins with: of its session, or of the owner's session most like it.

        They come with the name of the session of which the server has them, if it has.
        """
        if key in self._logs:
            return key, self._read(key, pieces)
        whose, tokens = self._tokens.get(key, ("", None))
        if tokens is not None and whose == owner:
            return "", list(read_tokens(tokens, pieces, cuts, self._tokenize, self._spell))
        recent = (other for other, (whose, _) in reversed(self._logs.items()) if whose == owner)
        found = ((other, self._read(other, pieces)) for other in islice(recent, CANDIDATES))
        return max(found, key=lambda match: len(match[1]), default=("", []))

    def _read(self, key: str, pieces: Sequence[Piece]) -> list[Segment]:
        return list(read_rows(self._logs[key][1], pieces, self._tokenize, self._spell))
