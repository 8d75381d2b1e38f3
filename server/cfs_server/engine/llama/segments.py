"""Segments of a token log: parts of a prompt whose tokens do not depend on the text beside them, and their rows.

A row is a segment in text form, short enough for the server to store for every session. It contains the length of the
segment's text in characters, its digest and its kind. A row of the model's own text also contains the tokens. A row is
used only if the prompt has this text at this position and the tokens decode to it here, because the model's file may
have changed since.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cfs_server.engine.chat.prompt import Piece
from cfs_server.engine.llama.ffi import Tokens


@dataclass(frozen=True, slots=True)
class Segment:
    """A text and its tokens; `reply` when the model wrote it."""

    text: str
    trusted: bool
    tokens: Tokens
    reply: bool = False


_TOKEN_BYTES = 3


_KINDS: dict[str, Literal["reply", "trusted", "text"]] = {"r": "reply", "t": "trusted", "u": "text"}


def write_row(segment: Segment) -> str:
    """Write a row."""
    kind = "r" if segment.reply else "t" if segment.trusted else "u"
    packed = _pack(segment.tokens) if segment.reply else ""
    return f"{len(segment.text)}:{_digest(segment.text)}:{kind}:{packed}"


def read_rows(
    rows: Sequence[str],
    pieces: Sequence[Piece],
    tokenize: Callable[[str, bool], Tokens],
    spell: Callable[[int], bytes],
) -> Iterator[Segment]:
    """Yield the segments that a prompt begins with, up to the first that it does not have."""
    unread = iter(rows)
    for piece in pieces:
        position = 0
        while position < len(piece.text):
            segment = _segment(next(unread, ""), piece, position, tokenize, spell)
            if segment is None:
                return
            yield segment
            position += len(segment.text)


def read_tokens(
    tokens: Tokens,
    pieces: Sequence[Piece],
    cuts: Callable[[Piece, int], Iterator[str]],
    tokenize: Callable[[str, bool], Tokens],
    spell: Callable[[int], bytes],
) -> Iterator[Segment]:
    """Yield the segments that a prompt begins with, as far as these tokens spell it.

    Text that would be cut into other tokens is a reply. Of the last one, some tokens may be missing.
    """
    rest = tokens
    for piece in pieces:
        for text in cuts(piece, 0):
            usual = tokenize(text, piece.trusted)
            if np.array_equal(rest[: len(usual)], usual):
                segment = Segment(text, piece.trusted, usual)
            elif piece.trusted or (chosen := _spelling(text, rest, tokenize, spell)) is None:
                return
            else:
                segment = Segment(text, trusted=False, tokens=chosen, reply=True)
            yield segment
            rest = rest[len(segment.tokens) :]


def _spelling(
    text: str, tokens: Tokens, tokenize: Callable[[str, bool], Tokens], spell: Callable[[int], bytes]
) -> Tokens | None:
    """Return the first tokens, which spell a text; if there are too few, with those of its end."""
    target, spelled, count = text.encode(), b"", 0
    try:
        while count < len(tokens) and len(spelled) < len(target):
            spelled += spell(int(tokens[count]))
            count += 1
        end = target.removeprefix(spelled).decode() if target.startswith(spelled) else None
    except (ValueError, IndexError, KeyError):
        return None
    if end is None or not count:
        return None
    return np.concatenate([tokens[:count], tokenize(end, False)]) if end else tokens[:count]


def _segment(
    row: str, piece: Piece, position: int, tokenize: Callable[[str, bool], Tokens], spell: Callable[[int], bytes]
) -> Segment | None:
    try:
        length, digest, letter, packed = row.split(":")
        kind, tokens = _KINDS[letter], _unpack(packed)
        text = piece.text[position : position + int(length)]
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
