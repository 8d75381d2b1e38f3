"""The format of a state file: every part is checked before it is used.

    magic, length of the head (4 bytes), head (JSON), tokens (int32), digest of all that, state

The head contains the fingerprint (model, build, settings), the owner, the sessions, the positions, and the length and
checksum of each piece of state. The tokens begin at the first position. They identify the state.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO

import numpy as np
from numpy.typing import NDArray

MAGIC = b"CFS state 1\n"


_LENGTH = struct.Struct(">I")


_MOST = 64 << 20


SLICE = 1 << 20
"""Bytes that are written, read or summed at once; other threads run meanwhile."""


State = NDArray[np.uint8]


class BadFile(Exception):
    """The file is incomplete, damaged or foreign; the error's text gives the reason."""


@dataclass(frozen=True, slots=True)
class StatePiece:
    """Saved state of the positions from `start` to `end`."""

    start: int
    end: int
    state: State


@dataclass(frozen=True, slots=True)
class StateHeader:
    """The metadata of a file."""

    fingerprint: str
    owner: str
    sessions: tuple[str, ...]
    start: int
    end: int
    tokens: NDArray[np.int32]
    """From position 0 to `end`."""
    pieces: tuple[tuple[int, int, int, int], ...]
    """Start, end, bytes and checksum of each piece of state."""

    @property
    def state_bytes(self) -> int:
        """Bytes behind the head."""
        return sum(piece[2] for piece in self.pieces)

    def encode(self) -> bytes:
        """Write the head down."""
        facts = [self.fingerprint, self.owner, self.sessions, self.start, self.end, len(self.tokens), self.pieces]
        body = json.dumps(facts).encode()
        start = MAGIC + _LENGTH.pack(len(body)) + body + self.tokens.astype("<i4").tobytes()
        return start + hashlib.sha256(start).digest()


def describe(pieces: Sequence[StatePiece]) -> tuple[tuple[int, int, int, int], ...]:
    """Sum up pieces for a head."""
    return tuple((piece.start, piece.end, len(piece.state), _checksum(piece.state)) for piece in pieces)


def slices(state: State) -> Iterator[memoryview]:
    """Cut state for writing."""
    view = state.data
    for offset in range(0, len(state), SLICE):
        yield view[offset : offset + SLICE]


def read_head(file: FileIO) -> StateHeader:
    """Read the head of a file; raises `BadFile`."""
    try:
        return _read_head(file)
    except (ValueError, TypeError, KeyError) as error:
        raise BadFile(f"the head makes no sense: {error}") from error


def _read_head(file: FileIO) -> StateHeader:
    start = _exactly(file, len(MAGIC) + _LENGTH.size)
    if not start.startswith(MAGIC):
        raise BadFile("it is no state file of this version")
    (length,) = _LENGTH.unpack(start[len(MAGIC) :])
    if length > _MOST:
        raise BadFile("the head is too long")
    body = _exactly(file, length)
    fingerprint, owner, sessions, begin, end, count, pieces = json.loads(body)
    if not isinstance(count, int) or not 0 < count <= _MOST // 4:
        raise BadFile("the head makes no sense")
    raw = _exactly(file, 4 * count)
    if hashlib.sha256(start + body + raw).digest() != _exactly(file, 32):
        raise BadFile("the head is damaged")
    tokens = np.frombuffer(raw, dtype="<i4").astype(np.int32)
    rows = tuple((int(left), int(right), int(size), int(check)) for left, right, size, check in pieces)
    head = StateHeader(str(fingerprint), str(owner), tuple(map(str, sessions)), int(begin), int(end), tokens, rows)
    if not 0 <= head.start < head.end == len(tokens):
        raise BadFile("the head makes no sense")
    return head


def read_pieces(file: FileIO, head: StateHeader) -> Iterator[StatePiece]:
    """Read the state behind a head; raises `BadFile`."""
    for start, end, size, check in head.pieces:
        state = np.empty(size, dtype=np.uint8)
        view = state.data
        for offset in range(0, size, SLICE):
            _fill(file, view[offset : offset + SLICE])
        if _checksum(state) != check:
            raise BadFile("the state is damaged")
        yield StatePiece(start, end, state)


def _checksum(state: State) -> int:
    check = 0
    for part in slices(state):
        check = zlib.crc32(part, check)
    return check


def _exactly(file: FileIO, count: int) -> bytes:
    data = bytearray(count)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: FileIO, view: memoryview) -> None:
    while len(view):
        count = file.readinto(view)
        if not count:
            raise BadFile("it ends too early")
        view = view[count:]
