"""Converts text to tokens and tokens to bytes, by the model's own vocabulary. It is thread-safe.

It also keeps the token log of each session, so that earlier text is not tokenized again.
"""

import ctypes
import hashlib
import re
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs_server.engine.chat.prompt import Piece
from cfs_server.engine.chat.reply_parser import MARKS
from cfs_server.engine.contract.protocol import TokenLogDelta
from cfs_server.engine.llama.ffi import Tokens

# -- segments: parts of a prompt whose tokens do not depend on the text beside them -----------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """A text and its tokens; `reply` when the model wrote it."""

    text: str
    trusted: bool
    tokens: Tokens
    reply: bool = False


# -- rows: segments of a token log in text form, short enough for the server to store for every session ---------------
#
# A row contains the length of the segment's text in characters, its digest and its kind. A row of the model's own text
# also contains the tokens. A row is used only if the prompt has this text at this place and the tokens decode to it
# here, because the model's file may have changed since.

_TOKEN_BYTES = 3
_KINDS: dict[str, Literal["reply", "trusted", "text"]] = {"r": "reply", "t": "trusted", "u": "text"}


def write(segment: Segment) -> str:
    """Write a row."""
    kind = "r" if segment.reply else "t" if segment.trusted else "u"
    packed = _pack(segment.tokens) if segment.reply else ""
    return f"{len(segment.text)}:{_digest(segment.text)}:{kind}:{packed}"


def read(
    rows: Sequence[str],
    pieces: Sequence[Piece],
    tokenize: Callable[[str, bool], Tokens],
    spell: Callable[[int], bytes],
) -> Iterator[Segment]:
    """Yield the segments that a prompt begins with, up to the first that it does not have."""
    unread = iter(rows)
    for piece in pieces:
        place = 0
        while place < len(piece.text):
            segment = _segment(next(unread, ""), piece, place, tokenize, spell)
            if segment is None:
                return
            yield segment
            place += len(segment.text)


def _segment(
    row: str, piece: Piece, place: int, tokenize: Callable[[str, bool], Tokens], spell: Callable[[int], bytes]
) -> Segment | None:
    try:
        length, digest, letter, packed = row.split(":")
        kind, tokens = _KINDS[letter], _unpack(packed)
        text = piece.text[place : place + int(length)]
    except (ValueError, KeyError):
        return None
    if not text or len(text) != int(length) or _digest(text) != digest:
        return None
    if kind != "reply":
        trusted = kind == "trusted"
        return Segment(text, trusted, tokenize(text, trusted)) if trusted == piece.trusted else None
    try:
        spelled = b"".join(spell(int(token)) for token in tokens)
    except (ValueError, IndexError, KeyError):
        return None
    return Segment(text, trusted=False, tokens=tokens, reply=True) if spelled == text.encode() else None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _pack(tokens: Tokens) -> str:
    parts = tokens.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :_TOKEN_BYTES]
    return b64encode(parts.tobytes()).decode()


def _unpack(packed: str) -> Tokens:
    parts = np.frombuffer(b64decode(packed, validate=True), dtype=np.uint8).reshape(-1, _TOKEN_BYTES)
    whole = np.zeros((len(parts), 4), dtype=np.uint8)
    whole[:, :_TOKEN_BYTES] = parts
    return whole.view("<u4").reshape(-1).astype(np.int32)


# -- restored logs: the token logs of the previous worker, as the server stored them ----------------------------------
#
# A log is parsed when its session continues or is copied.

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
        return list(read(self._logs[key][1], pieces, self._tokenize, self._spell))


# -- token logs: the tokens of each session, each tokenized or generated once and then fixed --------------------------
#
# A log is a list of segments. A segment is tokenized separately, so the tokens of a prompt are the tokens of its
# segments in order. A segment is a special token's name with the text after it, an untrusted piece, or a reply with
# exactly the tokens that the model chose. The next prompt of a session reuses all segments up to the first difference.

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

    def answer(self, said: str, tokens: Tokens, pieces: Sequence[bytes]) -> None:
        """Add the reply, if a prefix of its tokens decodes exactly to its text.

        It does not if white space or a stop string was removed inside a token; then the text is used.
        """
        wanted = said.encode()
        length = count = 0
        while length < len(wanted) and count < len(pieces):
            length += len(pieces[count])
            count += 1
        if count and b"".join(pieces[:count]) == wanted:
            self.segments.append(Segment(said, trusted=False, tokens=tokens[:count], reply=True))

    def take_delta(self) -> TokenLogDelta | None:
        """Return the part that the server does not have yet."""
        if not self.key:
            return None
        source, keep = self.sent
        self.sent = self.key, len(self.segments)
        return TokenLogDelta(self.key, self.owner, source, keep, list(map(write, self.segments[keep:])))


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
        known = before.segments if before else []
        same = self._agreement(pieces, known)
        log = TokenLog(known[: same.count], reused=same.count)
        for index, piece in enumerate(pieces[same.piece :]):
            place = 0 if index else same.place
            if place < len(piece.text):
                for segment in self._cut(piece, place):
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
        source, segments = self._restored.find(key, owner, pieces)
        known = self._agreement(pieces, alike.segments).count if alike is not None else 0
        return TokenLog(segments, sent=(source, len(segments))) if len(segments) > known else alike

    def _agreement(self, pieces: Sequence[Piece], known: Sequence[Segment]) -> "_Agreement":
        count = place = 0
        for index, piece in enumerate(pieces):
            place = 0
            while place < len(piece.text):
                if not self._goes_on(known, count, piece, place):
                    return _Agreement(count, index, place)
                place += len(known[count].text)
                count += 1
        return _Agreement(count, len(pieces), 0)

    def _goes_on(self, known: Sequence[Segment], index: int, piece: Piece, place: int) -> bool:
        """Whether a known segment is at this place of a piece, and would end there again."""
        if index >= len(known):
            return False
        segment = known[index]
        end = place + len(segment.text)
        if not piece.text.startswith(segment.text, place) or (segment.trusted != piece.trusted and not segment.reply):
            return False
        if end == len(piece.text) or segment.reply:
            return True
        if piece.trusted and self._cuts is not None and self._cuts.match(piece.text, end):
            return True
        return index + 1 < len(known) and known[index + 1].reply and self._goes_on(known, index + 1, piece, end)

    def _cut(self, piece: Piece, place: int) -> Iterator[Segment]:
        starts = [place, len(piece.text)]
        if piece.trusted and self._cuts is not None:
            found = (match.start() for match in self._cuts.finditer(piece.text, place))
            starts[1:1] = [start for start in found if start > place]
        for start, end in pairwise(starts):
            text = piece.text[start:end]
            yield Segment(text, piece.trusted, self._tokenize(text, piece.trusted))


def _finished(work: Cutting) -> TokenLog:
    while True:
        try:
            next(work)
        except StopIteration as end:
            log: TokenLog = end.value
            return log


_CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
_STRIPS = lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP


class Vocabulary:
    """The tokenizer of a loaded model."""

    def __init__(self, model: Any) -> None:
        self.raw = lib.llama_model_get_vocab(model)
        self.size = int(lib.llama_vocab_n_tokens(self.raw))
        self.begin = int(lib.llama_vocab_bos(self.raw)) if lib.llama_vocab_get_add_bos(self.raw) else None
        self._pieces: dict[int, bytes] = {}
        self._ends = {token for token in range(self.size) if lib.llama_vocab_is_eog(self.raw, token)}
        controls = self._controls()
        self._shown = {token for token in controls if self.text_of(token) in MARKS}
        self.special_text = self._pattern(controls)
        self.cuts = self._pattern(self._controls(without=_STRIPS))
        self.longest = max(len(lib.llama_vocab_get_text(self.raw, token).decode()) for token in range(self.size))
        """Characters of the longest token, or its bytes where a vocabulary writes each byte as a character."""

    def text_of(self, token: int) -> str:
        """Return how a token, special ones too, is written in a template; empty for "none"."""
        return self._piece(token, special=True).decode(errors="replace") if token >= 0 else ""

    @property
    def begin_text(self) -> str:
        """The `bos_token` of templates."""
        return self.text_of(int(lib.llama_vocab_bos(self.raw)))

    @property
    def end_text(self) -> str:
        """The `eos_token` of templates."""
        return self.text_of(int(lib.llama_vocab_eos(self.raw)))

    def ends(self, token: int) -> bool:
        """Whether a token means that the turn is over."""
        return token in self._ends

    def piece(self, token: int) -> bytes:
        """The bytes of a generated token; of special tokens only those that mark parts of a reply have any."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._piece(token, special=token in self._shown)
        return known

    def spell(self, token: int) -> bytes:
        """Return the bytes of an untrusted token id; raises `IndexError` if it is invalid."""
        if not 0 <= token < self.size:
            raise IndexError(f"there is no token {token}")
        return self.piece(token)

    def tokenize(self, text: str, *, special: bool) -> Tokens:
        """Cut text into tokens; `special` reads the names of special tokens as those tokens."""
        data = text.encode()
        room = len(data) + 8
        while True:
            tokens = np.empty(room, dtype=np.int32)
            pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            count = int(lib.llama_tokenize(self.raw, data, len(data), pointer, room, False, special))
            if count >= 0:
                return tokens[:count]
            room = -count

    def _piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = int(lib.llama_token_to_piece(self.raw, token, buffer, len(buffer), 0, special))
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = int(lib.llama_token_to_piece(self.raw, token, buffer, len(buffer), 0, special))
        return buffer.raw[:size]

    def _controls(self, without: int = 0) -> list[int]:
        attributes = ((token, lib.llama_vocab_get_attr(self.raw, token)) for token in range(self.size))
        return [token for token, attribute in attributes if attribute & _CONTROL and not attribute & without]

    def _pattern(self, tokens: list[int]) -> re.Pattern[str] | None:
        names = sorted({self.text_of(token) for token in tokens} - {""}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None
