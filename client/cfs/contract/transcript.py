r"""Renders and parses transcripts, the text form of a session: lossless, and safe against forged turns (S6).

A transcript is the session's messages, each beginning with its role's prefix, joined by ``\n`` and ended by ``\n``.
A line inside a message that begins with such a prefix, after any number of backslashes, gets one more backslash;
parsing removes it. So no text inside a message can begin another turn, and ``parse(render(m)) == m``.

Each call of a tool is shown as one more line, ``[CALL:name(key='value')]``; when parsed, these lines are content. Ids
and thinking are not shown.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from keyword import iskeyword
from typing import Any, NamedTuple, Protocol
from unicodedata import is_normalized

from cfs.contract.errors import InvalidTranscript, TooLarge

PREFIXES = {"system": "System: ", "user": "User: ", "assistant": "Assistant: ", "tool": "Tool: "}

_ROLE_STOPS = tuple(f"\n{prefix.rstrip()}" for prefix in PREFIXES.values())

_PREFIX = f"(?:{'|'.join(PREFIXES.values())})"
_GUARDED = re.compile(rf"\n(?=\\*{_PREFIX})")
_ESCAPED = re.compile(rf"\n\\(?=\\*{_PREFIX})")
_TURN = re.compile(rf"\n(?={_PREFIX})")
_FIRST = re.compile(_PREFIX)
_OLD_TURN = re.compile(rf"\r(?={_PREFIX})")


class TranscriptMessage(NamedTuple):
    """One message as the transcript shows it."""

    role: str
    content: str


class _MessageLike(Protocol):
    """Anything with a role and a content: a wire message, a stored one, or a `TranscriptMessage`."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


def shown(message: _MessageLike) -> str:
    """What the transcript shows of a message: its content, and the calls that it makes."""
    calls = getattr(message, "tool_calls", ())
    if not calls:
        return message.content
    lines = [write_call(call.name, call.arguments) for call in calls]
    return "\n".join([message.content, *lines] if message.content else lines)


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call of a tool as it may stand in a reply (C8): by keywords, or else with one mapping."""
    if all(map(_is_keyword, arguments)):
        return f"[CALL:{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"
    return f"[CALL:{name}({dict(arguments)!r})]"


def _is_keyword(key: str) -> bool:
    """Tell whether Python reads `key` as the keyword that it is: it would normalize some letters, such as `º`."""
    return key.isidentifier() and not iskeyword(key) and is_normalized("NFKC", key)


def render_one(message: _MessageLike) -> str:
    """Render one message without the final newline."""
    return PREFIXES[message.role] + _GUARDED.sub(r"\n\\", shown(message))


def render(messages: Iterable[_MessageLike]) -> str:
    """Render messages as a transcript; no messages make an empty text."""
    return "".join(render_one(message) + "\n" for message in messages)


BOM = "\ufeff"
"""The byte order mark, which editors of Windows put before a text."""


def from_elsewhere(text: str) -> str:
    """Return a transcript that another program may have saved as CFS writes it: no byte order mark, `\n` at line ends.

    A `\r` at the end of some lines only is part of a message, and so is one at the end of the only line.
    """
    text = text.removeprefix(BOM)
    if "\r\n" in text[:-1] and text.count("\r\n") == text.count("\n"):
        return text.replace("\r\n", "\n")
    return text if "\n" in text or not _OLD_TURN.search(text) else text.replace("\r", "\n")


def reply_stops(own: tuple[str, ...] | None) -> tuple[str, ...]:
    """Say which strings end a reply that a model writes into a transcript: `own` ones, or else `User:`.

    So does every role's prefix at the beginning of a line, as the model would go on with another one's message there.
    An empty `own` means that nothing does.
    """
    if own == ():
        return ()
    own = ("User:",) if own is None else own
    return own + tuple(stop for stop in _ROLE_STOPS if not any(text in stop for text in own))


def parse(text: str, *, max_messages: int | None = None) -> list[TranscriptMessage]:
    """Read a transcript back; one final newline is taken as the end of the last line.

    Raises `InvalidTranscript` when the text does not begin with a role's prefix, and `TooLarge` when it has more than
    `max_messages` messages, before it reads them.
    """
    if not text:
        return []
    if not _FIRST.match(text):
        expected = ", ".join(repr(prefix) for prefix in PREFIXES.values())
        raise InvalidTranscript(f"a transcript begins with one of {expected}; this text begins with {text[:40]!r}")
    starts = [0, *(match.end() for match in islice(_TURN.finditer(text), max_messages))]
    if max_messages is not None and len(starts) > max_messages:
        raise TooLarge(f"a transcript has {max_messages} messages at most; this one has more")
    ends = [start - 1 for start in starts[1:]] + [len(text) - text.endswith("\n")]
    return [_parse_one(text[start:end]) for start, end in zip(starts, ends, strict=True)]


def _parse_one(block: str) -> TranscriptMessage:
    name, _, content = block.partition(": ")
    return TranscriptMessage(name.lower(), _ESCAPED.sub("\n", content))
