"""Interprets the body of a write: a message, a repeated transcript with an addition, or an edit (S3, S14).

Editors, `cp` and network file systems rewrite the whole file to add a line. The rules below distinguish such a body
from a plain message and from an edit of the past. They are applied in this order; T is the transcript, B the body, and
the base is the text that the writer is known to have had before:

0. A byte order mark at the beginning of B does not count.
1. B is empty or blank: nothing happens.
2. B equals T: nothing happens.
3. B is not UTF-8 (`UnsupportedMedia`), or its message is too big (`TooLarge`).
4. B begins with the base: what follows is the message.
5. B begins with all of T: what follows is the message.
6. T is empty and B reads as a conversation: it becomes the history. Its last message, if a user's, gets its turn (S14).
7. B shares no turn with T and holds no turn of an assistant: all of it is the message.
8. Anything else was edited or is out of date: it replaces the history where the writer named the present version,
   and is refused elsewhere (`Conflict`).

Where all lines of B end as on another system, rules 2 to 8 hold for B with plain line ends, unless all of it is the
message: messages keep their bytes.

Pure: no I/O.
"""

from codecs import BOM_UTF8
from dataclasses import dataclass

from cfs.contract.errors import Conflict, TooLarge, UnsupportedMedia
from cfs.contract.transcript import PREFIXES, TranscriptMessage, from_elsewhere, parse

_PREFIXES = tuple(prefix.encode() for prefix in PREFIXES.values())
_OTHERS = tuple(prefix.encode() for role, prefix in PREFIXES.items() if role != "user")
_ASSISTANT = (PREFIXES["assistant"].encode(),)


@dataclass(frozen=True, slots=True)
class Nothing:
    """The body adds nothing to the session."""


@dataclass(frozen=True, slots=True)
class Append:
    """The body brings one message: this text, never blank."""

    text: str


@dataclass(frozen=True, slots=True)
class ImportedHistory:
    """The body is the history of a session that has none yet."""

    transcript: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The body is the new history of a session whose present version the writer named."""

    transcript: str


Verdict = Nothing | Append | ImportedHistory | Replace


def has_turns(body: bytes) -> bool:
    """Tell whether any line reads as the beginning of a turn; a body without one is a message, whatever T is."""
    return _first(_plain(body), _PREFIXES) >= 0


def judge(
    body: bytes,
    transcript: bytes,
    *,
    base: bytes = b"",
    may_replace: bool = False,
    limit: int | None = None,
    max_messages: int | None = None,
) -> Verdict:
    """Tell what a body means, by the rules above.

    `limit` is the size of the largest message in bytes, `max_messages` the number of messages in the longest
    transcript. An empty `base` stands for none known. Raises `UnsupportedMedia`, `TooLarge`, or `Conflict` (rule 8).
    """
    body = body.removeprefix(BOM_UTF8)
    if not body.strip() or _same(body, transcript):
        return Nothing()
    text = _decode(body)
    for start in (base, transcript):
        if start and body.startswith(start):
            return _message(body[len(start) :].decode(), limit)
    if (plain := _plain(body)) != body:
        verdict = judge(plain, transcript, base=base, may_replace=may_replace, limit=limit, max_messages=max_messages)
        return _message(text, limit) if verdict == Append(plain.decode()) else verdict
    if not transcript and not base:
        return ImportedHistory(text) if _is_conversation(body) else _message(text, limit)
    if not (_first(body, _ASSISTANT) >= 0 or _turns(body, max_messages) & (_turns(transcript) | _turns(base))):
        return _message(text, limit)
    if may_replace:
        return Replace(text)
    raise Conflict(
        "this text is neither a message nor the transcript with something added: its past was edited, or the session"
        " has gone on meanwhile; read it again, and only append"
    )


def _plain(body: bytes) -> bytes:
    """Return a body without a byte order mark and with plain line ends; see `from_elsewhere`."""
    if b"\r" not in body:
        return body.removeprefix(BOM_UTF8)
    return from_elsewhere(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _same(body: bytes, transcript: bytes) -> bool:
    """Some editors drop the last line end."""
    return body == transcript or (len(body) + 1 == len(transcript) and body + b"\n" == transcript)


def _decode(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"a text must be UTF-8: {error.reason} at byte {error.start}") from None


def _message(text: str, limit: int | None) -> Append | Nothing:
    if limit is not None and (size := len(text.encode())) > limit:
        raise TooLarge(f"a message has {limit} bytes at most; this one has {size}")
    return Append(text) if text.strip() else Nothing()


def _is_conversation(body: bytes) -> bool:
    """A text in which only users speak is a message that was written with its prefix (S3)."""
    return body.startswith(_PREFIXES) and _first(body, _OTHERS) >= 0


def _turns(body: bytes, limit: int | None = None) -> set[TranscriptMessage]:
    """The turns that a text holds, from its first line that reads as the beginning of one."""
    first = _first(body, _PREFIXES)
    return set(parse(body[first:].decode(), max_messages=limit)) if first >= 0 else set()


def _first(body: bytes, prefixes: tuple[bytes, ...]) -> int:
    """Find the first line that begins with one of some prefixes; -1 if none does."""
    if body.startswith(prefixes):
        return 0
    return min((at + 1 for prefix in prefixes if (at := body.find(b"\n" + prefix)) >= 0), default=-1)
