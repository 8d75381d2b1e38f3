"""Searches in the messages of sessions: a scan of those in memory, and of the rows of the others in the store.

There is no index. An index of 100,000 messages would save some milliseconds of a search, cost every accepted message a
second write, and keep words of deleted messages until it is cleaned.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from cfs.wire import Message
from cfs_server.domain.loop_bridge import AT_ONCE_BYTES, aside
from cfs_server.journal.journal import Journal
from cfs_server.journal.records import Row, decode_events, decode_messages
from cfs_server.sessions.session import Session

_BEFORE, _AFTER = 60, 140
"""Characters of an excerpt before and after the beginning of the first match."""


@dataclass(frozen=True, slots=True)
class Match:
    """A message that contains the words. `index` is its place in the history, `time` when it was added."""

    session: Session
    index: int
    time: float
    message: Message


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a message, and where the words are in it, in characters."""

    text: str
    ranges: tuple[tuple[int, int], ...]


async def search(
    sessions: Iterable[Session], journal: Journal | None, words: str, limit: int, owner: str
) -> tuple[list[Match], bool]:
    """Return the newest messages that contain the words, ignoring case, and whether there may be more."""
    needle = words.casefold()
    absent: dict[str, Session] = {}
    present: list[tuple[Session, tuple[Message, ...], tuple[float, ...]]] = []
    for session in sessions:
        if session.history.loaded:
            present.append((session, session.history.messages, session.history.times))
        elif len(session.history):
            absent[session.key] = session
    size = sum(session.history.size for session, _, _ in present)
    found = await aside(max(size, AT_ONCE_BYTES + 1), owner, lambda: _scan(present, needle, limit))
    if absent and journal is not None:
        found += await _stored(absent, journal, needle, limit)
    return newest(found, limit)


def newest(matches: Iterable[Match], limit: int) -> tuple[list[Match], bool]:
    """Return the newest matches first, and whether there are more."""
    ordered = sorted(matches, key=lambda match: (match.time, match.index), reverse=True)
    return ordered[:limit], len(ordered) > limit


def _scan(
    present: Sequence[tuple[Session, tuple[Message, ...], tuple[float, ...]]], needle: str, limit: int
) -> list[Match]:
    """Search the histories in memory. The newest messages of each are enough."""
    found: list[Match] = []
    for session, messages, times in present:
        most = len(found) + limit + 1
        for index in range(len(messages) - 1, -1, -1):
            if needle in messages[index].content.casefold():
                found.append(Match(session, index, times[index], messages[index]))
                if len(found) == most:
                    break
    return found


async def _stored(absent: dict[str, Session], journal: Journal, needle: str, limit: int) -> list[Match]:
    """Search the histories in the store, newest rows first, a part at a time: commits come in between."""
    found: list[Match] = []
    pattern, end = like(needle), None
    while len(found) <= limit:
        rows, end = await journal.candidates(pattern, end, 2 * limit)
        for row in rows:
            session = absent.get(row.session)
            if session is not None and not session.deleted and row.seq >= session.begins_at:
                found += _of_row(session, row, needle)
        if end is None:
            break
    return found


def _of_row(session: Session, row: Row, needle: str) -> list[Match]:
    added = decode_messages(row)
    hits = [at for at, (message, _) in enumerate(added) if needle in message.content.casefold()]
    if not hits:
        return []
    first = next((event.data["index"] for event in decode_events(row) if event.type == "message.added"), 0)
    return [Match(session, first + at, added[at][1], added[at][0]) for at in hits]


def like(needle: str) -> str:
    """Return a pattern of SQL's LIKE for stored rows that may contain a folded text. The match is checked later.

    It is the longest part that rows contain as it is: LIKE ignores the case of ASCII letters only, and JSON writes some
    characters as escapes.
    """
    return f"%{max(_PLAIN.findall(needle), key=len, default='')}%"


_PLAIN = re.compile(r"(?:[^\W\d_\x80-\U0010ffff]|[0-9 !#$&\'()*+,./:;<=>?@\[\]^`{|}~-]|[\u3040-\u30ff\u3400-\u9fff])+")
"""ASCII without `%`, `_`, quotes and backslashes, and Chinese and Japanese characters, which have no case.

The letters k and s are also the folded forms of the Kelvin sign and of the long s, which are not found in the store.
"""


def excerpt(content: str, words: str) -> Excerpt:
    """Return the part of a message around the first match."""
    needle, folded = words.casefold(), content.casefold()
    at = _mapping(content, folded)
    first = at(folded.index(needle))
    begin, end = max(0, first - _BEFORE), min(len(content), first + _AFTER + len(words))
    text = ("…" if begin else "") + content[begin:end] + ("…" if end < len(content) else "")
    shift = (1 if begin else 0) - begin
    ranges: list[tuple[int, int]] = []
    place = folded.index(needle)
    while place >= 0 and at(place + len(needle) - 1) < end:
        ranges.append((at(place) + shift, at(place + len(needle) - 1) + 1 + shift))
        place = folded.find(needle, place + len(needle))
    return Excerpt(text, tuple(ranges))


def _mapping(content: str, folded: str) -> Callable[[int], int]:
    """Return a function from places in a folded text to places in the text. Folding makes a few characters longer."""
    if len(folded) == len(content):
        return lambda place: place
    starts = [0, *accumulate(len(each.casefold()) for each in content)]
    return lambda place: bisect_right(starts, place) - 1
