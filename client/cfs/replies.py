"""Finding the reply to a message in a transcript that grows (C3, C4). Pure: no I/O.

Where the file itself does not say whether a turn is running (a plain directory, davfs2), its text does: a transcript
is settled when it ends in a line end and its last message is not a user's.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cfs.errors import InvalidTranscript
from cfs.transcript import PREFIXES, Turn, parse

_ERROR = re.compile(r"\[Error: (.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a message as far as it is there; `end` is the number of messages up to it."""

    text: str
    end: int
    complete: bool


def as_written(message: str) -> bytes:
    """Write a message as the bytes that a file takes: whatever it begins or ends with arrives as it is (S3)."""
    return f"{PREFIXES['user']}{message}\n".encode()


def decode(data: bytes) -> str:
    """Decode what is there of a text; a character that is cut at the end is left for the next time."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def turns_of(text: str) -> list[Turn]:
    """Read a transcript that may be in the middle of a change: what does not read as turns has none yet."""
    try:
        return parse(text)
    except InvalidTranscript:
        return []


def settled(text: str) -> bool:
    """Whether nothing more is to come."""
    turns = turns_of(text)
    return not text or (text.endswith("\n") and bool(turns) and turns[-1].role != "user")


def asked_last(turns: Sequence[Turn], message: Turn) -> int | None:
    """Find the last message of this role and content."""
    return next((n for n in range(len(turns) - 1, -1, -1) if turns[n] == message), None)


def end_of_answer(turns: Sequence[Turn], asked: int) -> int:
    """Count the messages up to the end of the turn that a message began: to the next user's one."""
    return next((n for n in range(asked + 1, len(turns)) if turns[n].role == "user"), len(turns))


def find_reply(text: str, turns: Sequence[Turn], message: str) -> Found | None:
    """Find what answers the last user's message of this content; None when it is not answered yet.

    Text that was written raw and would read as other turns is not found, and so waited for: it is shown escaped as
    soon as it has been taken in.
    """
    asked = asked_last(turns, Turn("user", message))
    if asked is None:
        return None
    end = end_of_answer(turns, asked)
    if end == asked + 1 or turns[end - 1].role != "assistant":
        return None
    return Found(turns[end - 1].content, end, complete=end < len(turns) or text.endswith("\n"))


def error_in(reply: str) -> str | None:
    """Read why a turn has failed from its reply, which is all that a file shows of it (S5)."""
    found = _ERROR.fullmatch(reply)
    return found[1] if found else None
