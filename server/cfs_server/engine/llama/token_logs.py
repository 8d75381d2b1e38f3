"""The tokens of each session, each tokenized or generated once and then fixed.

A log is a list of segments. A segment is tokenized separately, so the tokens of a prompt are the tokens of its segments
in order. A segment is a special token's name with the text after it, an untrusted piece, or a reply with exactly the
tokens that the model chose. The next prompt of a session reuses all segments up to the first difference.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np

from cfs_server.engine.chat.prompt import Piece
from cfs_server.engine.contract.protocol import TokenLogDelta
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.segments import Segment, read_rows, read_tokens, write_row

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
        candidates = ((other, self._read(other, pieces)) for other in islice(recent, CANDIDATES))
        return max(candidates, key=lambda match: len(match[1]), default=("", []))

    def _read(self, key: str, pieces: Sequence[Piece]) -> list[Segment]:
        return list(read_rows(self._logs[key][1], pieces, self._tokenize, self._spell))


Tokenize = Callable[[str, bool], Tokens]
"""Tokenizes a text; with the flag the text is trusted to name special tokens."""


LOG_CHARACTERS = 16 << 20
"""Text of all logs together, of which the least recently used go first: they are only a saving."""


@dataclass(slots=True)
class TokenLog:
    """A prompt as segments, and its reply when the turn is over."""

    segments: list[Segment] = field(default_factory=list)
    reused: int = 0
    """Segments taken from the turn before."""
    owner: str = ""
    key: str = ""
    """The session, if this is its newest log; no other log is sent."""
    sent: tuple[str, int] = ("", 0)
    """How many of the segments the server has, in the log of which session."""

    @property
    def tokens(self) -> Tokens:
        """All tokens, as one array."""
        parts = [segment.tokens for segment in self.segments]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    @property
    def characters(self) -> int:
        """Length of the text."""
        return sum(len(segment.text) for segment in self.segments)

    def answer(self, text: str, tokens: Tokens, pieces: Sequence[bytes]) -> None:
        """Add the reply, if a prefix of its tokens decodes exactly to its text.

        It does not if white space or a stop string was removed inside a token; then the text is used.
        """
        target = text.encode()
        length = count = 0
        while length < len(target) and count < len(pieces):
            length += len(pieces[count])
            count += 1
        if count and b"".join(pieces[:count]) == target:
            self.segments.append(Segment(text, trusted=False, tokens=tokens[:count], reply=True))

    def take_delta(self) -> TokenLogDelta | None:
        """Return the part that the server does not have yet."""
        if not self.key:
            return None
        source, keep = self.sent
        self.sent = self.key, len(self.segments)
        return TokenLogDelta(self.key, self.owner, source, keep, list(map(write_row, self.segments[keep:])))


Cutting = Generator[None, None, TokenLog]


@dataclass(frozen=True, slots=True)
class _Agreement:
    """How many segments a prompt begins with, and where in it they end: a piece, and a place in that."""

    count: int
    piece: int
    place: int


class TokenLogs:
    """The newest log of each session, by its cache key."""

    def __init__(
        self,
        tokenize: Tokenize,
        cuts: re.Pattern[str] | None,
        limit: int = LOG_CHARACTERS,
        *,
        restored: RestoredLogs | None = None,
    ) -> None:
        """`cuts` finds the special tokens that text may be cut before without a change to its tokens."""
        self._restored = restored
        self._tokenize = tokenize
        self._cuts = cuts
        self._limit = limit
        self._logs: OrderedDict[str, TokenLog] = OrderedDict()
        self._characters: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        """Count sessions."""
        return len(self._logs)

    def next(self, key: str, pieces: Sequence[Piece], owner: str = "") -> TokenLog:
        """Cut the next prompt of a session at once; see `cut_next`."""
        return _finished(self.cut_next(key, pieces, owner))

    def cut_next(self, key: str, pieces: Sequence[Piece], owner: str = "") -> Cutting:
        """Tokenize the new part of a session's next prompt, and yield to other work at each segment.

        A new session may be a copy of another one of its owner, or begin with the same text. It then takes over
        that session's tokens, and with them their computed state.
        """
        before = self._logs.get(key)
        if before is None:
            recent = (log for log in reversed(self._logs.values()) if log.owner == owner)
            alike = islice(recent, CANDIDATES)
            before = max(alike, key=lambda log: self._agreement(pieces, log.segments).count, default=None)
            before = self._restore(key, owner, pieces, before)
        log = yield from self.cut(pieces, before)
        log.owner, log.key = owner, key
        if before is not None:
            source, count = before.sent
            log.sent = source, min(count, log.reused)
        self.forget(key)
        self._logs[key] = log
        self._characters[key] = log.characters
        self._total += self._characters[key]
        while self._total > self._limit and len(self._logs) > 1:
            self.forget(next(iter(self._logs)))
        return log

    def resync(self, key: str) -> None:
        """Note that the server does not have a session's log."""
        if (log := self._logs.get(key)) is not None:
            log.sent = "", 0

    def forget(self, key: str) -> None:
        """Drop a session's log."""
        if self._restored is not None:
            self._restored.forget(key)
        self._logs.pop(key, None)
        self._total -= self._characters.pop(key, 0)

    def read(self, pieces: Sequence[Piece], before: TokenLog | None = None) -> TokenLog:
        """Cut a prompt at once; see `cut`."""
        return _finished(self.cut(pieces, before))

    def cut(self, pieces: Sequence[Piece], before: TokenLog | None = None) -> Cutting:
        """Cut a prompt that may begin as another log does, and stop for others at each segment."""
        segments = before.segments if before else []
        same = self._agreement(pieces, segments)
        log = TokenLog(segments[: same.count], reused=same.count)
        for index, piece in enumerate(pieces[same.piece :]):
            position = 0 if index else same.place
            if position < len(piece.text):
                for segment in self._cut(piece, position):
                    log.segments.append(segment)
                    yield
        return log

    def check_integrity(self) -> list[str]:
        """Compare the records with the logs; every line is a violation."""
        if self._logs.keys() != self._characters.keys() or self._total != sum(self._characters.values()):
            return ["token logs and their sizes do not agree"]
        return []

    def _restore(self, key: str, owner: str, pieces: Sequence[Piece], alike: TokenLog | None) -> TokenLog | None:
        """Find the previous worker's log of a session, unless a log of this worker is as long."""
        if self._restored is None:
            return alike
        source, segments = self._restored.find(key, owner, pieces, self._texts)
        common = self._agreement(pieces, alike.segments).count if alike is not None else 0
        return TokenLog(segments, sent=(source, len(segments) if source else 0)) if len(segments) > common else alike

    def _agreement(self, pieces: Sequence[Piece], segments: Sequence[Segment]) -> "_Agreement":
        count = position = 0
        for index, piece in enumerate(pieces):
            position = 0
            while position < len(piece.text):
                if not self._goes_on(segments, count, piece, position):
                    return _Agreement(count, index, position)
                position += len(segments[count].text)
                count += 1
        return _Agreement(count, len(pieces), 0)

    def _goes_on(self, segments: Sequence[Segment], index: int, piece: Piece, position: int) -> bool:
        """Whether a known segment is at this place of a piece, and would end there again."""
        if index >= len(segments):
            return False
        segment = segments[index]
        end = position + len(segment.text)
        if not piece.text.startswith(segment.text, position) or (
            segment.trusted != piece.trusted and not segment.reply
        ):
            return False
        if end == len(piece.text) or segment.reply:
            return True
        if piece.trusted and self._cuts is not None and self._cuts.match(piece.text, end):
            return True
        return (
            index + 1 < len(segments) and segments[index + 1].reply and self._goes_on(segments, index + 1, piece, end)
        )

    def _cut(self, piece: Piece, position: int) -> Iterator[Segment]:
        for text in self._texts(piece, position):
            yield Segment(text, piece.trusted, self._tokenize(text, piece.trusted))

    def _texts(self, piece: Piece, position: int) -> Iterator[str]:
        starts = [position, len(piece.text)]
        if piece.trusted and self._cuts is not None:
            matches = (match.start() for match in self._cuts.finditer(piece.text, position))
            starts[1:1] = [start for start in matches if start > position]
        for start, end in pairwise(starts):
            yield piece.text[start:end]


def _finished(work: Cutting) -> TokenLog:
    while True:
        try:
            next(work)
        except StopIteration as end:
            log: TokenLog = end.value
            return log
