"""Finds the reply to a message in a transcript that grows, and says what came of a message (C3, C4).

In a plain directory or on davfs2 only the text shows whether a turn is running: a transcript is settled if it ends
with a newline and its last message is not a user's.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cfs.contract.errors import InvalidTranscript
from cfs.contract.transcript import PREFIXES, TranscriptMessage, parse
from cfs.contract.wire import FinishReason, ToolCall, Usage

_ERROR = re.compile(r"\[Error: (.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """The reply to a message so far; `end` is the number of messages up to it."""

    text: str
    end: int
    complete: bool


def as_written(message: str) -> bytes:
    """Encode a message for writing to a file, so that its beginning and end arrive unchanged (S3)."""
    return f"{PREFIXES['user']}{message}\n".encode()


def decode(data: bytes) -> str:
    """Decode a partial text; an incomplete character at the end is ignored."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def turns_of(text: str) -> list[TranscriptMessage]:
    """Parse a transcript that may be changing; text that cannot be parsed has no turns yet."""
    try:
        return parse(text)
    except InvalidTranscript:
        return []


def settled(text: str) -> bool:
    """Whether the reply is complete."""
    turns = turns_of(text)
    return not text or (text.endswith("\n") and bool(turns) and turns[-1].role != "user")


def asked_last(turns: Sequence[TranscriptMessage], message: TranscriptMessage) -> int | None:
    """Return the index of the last message of this role and content."""
    return next((n for n in range(len(turns) - 1, -1, -1) if turns[n] == message), None)


def end_of_answer(turns: Sequence[TranscriptMessage], question: int) -> int:
    """Count the messages up to the end of the turn that a message began: to the next user's one."""
    return next((n for n in range(question + 1, len(turns)) if turns[n].role == "user"), len(turns))


def find_reply(text: str, turns: Sequence[TranscriptMessage], message: str) -> Found | None:
    """Return the reply to the last user's message of this content; None if there is none yet.

    A raw message that would parse as several turns is not found at first. It is found once the transcript shows it
    escaped.
    """
    index = asked_last(turns, TranscriptMessage("user", message))
    if index is None:
        return None
    end = end_of_answer(turns, index)
    if end == index + 1 or turns[end - 1].role != "assistant":
        return None
    return Found(turns[end - 1].content, end, complete=end < len(turns) or text.endswith("\n"))


def error_in(reply: str) -> str | None:
    """Return the reason of a failed turn from its reply: a file shows nothing else of it (S5)."""
    match = _ERROR.fullmatch(reply)
    return match[1] if match else None


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """The outcome of one message: the reply, and the history up to it. Unknown values are None."""

    reply: str
    history: Sequence[TranscriptMessage]
    error: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    calls: tuple[ToolCall, ...] = ()
