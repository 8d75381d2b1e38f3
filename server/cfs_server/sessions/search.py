"""Searches in the messages and titles of sessions, for those that are in memory only and for those in the store.

The store finds the newest messages that may match, by its index. They are read, ordered by how much they are about the
words and then by time, and compared exactly, until there are enough. Titles are compared in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from cfs.errors import StorageFull, Unavailable
from cfs.wire import Message
from cfs_server.domain.loop_bridge import AT_ONCE_BYTES, aside
from cfs_server.domain.words import Criteria, Excerpt, SearchQuery
from cfs_server.journal.journal import Hit, Journal
from cfs_server.journal.records import Row, decode_messages, first_index
from cfs_server.sessions.session import Session

_POOL = 256
"""Messages from which the best are chosen: the newest ones that may match."""
_MAX_PAGES = 16
"""How many times that many are read, if few of them really match."""


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """A message that contains the words, or a title: then `message` is None. `index` is its place in the history."""

    session: Session
    index: int
    time: float
    message: Message | None
    score: float
    excerpt: Excerpt


@dataclass(frozen=True, slots=True)
class MatchPage:
    """The best matches first, whether there may be more, and whether the index is still being built."""

    matches: Sequence[SearchMatch] = ()
    more: bool = False
    indexing: bool = False


@dataclass(frozen=True, slots=True)
class _Candidate:
    session: Session
    index: int
    time: float
    message: Message | None
    text: str
    score: float

    def match(self, query: SearchQuery) -> SearchMatch | None:
        excerpt = query.match(self.text)
        if excerpt is None:
            return None
        return SearchMatch(self.session, self.index, self.time, self.message, self.score, excerpt)


async def search(
    sessions: Sequence[Session],
    journal: Journal | None,
    criteria: Criteria,
    limit: int,
    owner: str,
    with_key: Callable[[str], Session | None] | None = None,
) -> MatchPage:
    """Return the best matches in some sessions. If they are all of the store, `with_key` finds one by its key."""
    titles = [] if criteria.role else _titles(sessions, criteria)
    if journal is None or not journal.durable_store:
        loaded = [(session, session.history.messages, session.history.times) for session in sessions]
        size = sum(session.history.size for session in sessions)
        return await aside(
            max(size, AT_ONCE_BYTES + 1), owner, lambda: _best([*titles, *_scan(loaded, criteria)], criteria, limit)
        )
    with suppress(StorageFull, Unavailable):  # what is stored can be found
        await journal.durable()
    keys = None
    if with_key is None:
        by_key = {session.key: session for session in sessions}
        keys, with_key = list(by_key), by_key.get
    stored = await _stored(with_key, keys, journal, criteria, limit, owner)
    return joined([_best(titles, criteria, limit), stored], limit)


def joined(results: Iterable[MatchPage], limit: int) -> MatchPage:
    """Return the best of several results."""
    parts = list(results)
    matches = sorted((match for part in parts for match in part.matches), key=_order, reverse=True)
    more = len(matches) > limit or any(part.more for part in parts)
    return MatchPage(matches[:limit], more, any(part.indexing for part in parts))


_order = attrgetter("score", "time", "index")


def _titles(sessions: Iterable[Session], criteria: Criteria) -> list[_Candidate]:
    """Return sessions whose set title or name may match. Another title is the beginning of a message."""
    words, since = tuple(criteria.query.words), criteria.since
    candidates: list[_Candidate] = []
    for session in sessions:  # there may be very many
        text = session.settings.title or session.id
        folded = text.lower() if text.isascii() else text.casefold()
        for word in words:
            if word not in folded:
                break
        else:
            if session.updated_at >= since:
                score = criteria.query.score(text) or 1.0
                candidates.append(_Candidate(session, 0, session.updated_at, None, text, score))
    return candidates


def _scan(
    loaded: Iterable[tuple[Session, Sequence[Message], Sequence[float]]], criteria: Criteria
) -> Iterator[_Candidate]:
    for session, messages, times in loaded:
        for index, (message, time) in enumerate(zip(messages, times, strict=True)):
            if candidate := _candidate(session, index, time, message, criteria):
                yield candidate


def _candidate(session: Session, index: int, time: float, message: Message, criteria: Criteria) -> _Candidate | None:
    if time < criteria.since or (criteria.role is not None and message.role != criteria.role):
        return None
    score = criteria.query.score(message.content)
    return _Candidate(session, index, time, message, message.content, score) if score else None


def _best(candidates: Iterable[_Candidate], criteria: Criteria, limit: int) -> MatchPage:
    """Compare the best candidates exactly, until there are enough."""
    matches: list[SearchMatch] = []
    for candidate in sorted(candidates, key=_order, reverse=True):
        if match := candidate.match(criteria.query):
            if len(matches) == limit:
                return MatchPage(matches, more=True)
            matches.append(match)
    return MatchPage(matches)


async def _stored(
    with_key: Callable[[str], Session | None],
    keys: Sequence[str] | None,
    journal: Journal,
    criteria: Criteria,
    limit: int,
    owner: str,
) -> MatchPage:
    """Search in the store, a pool of messages at a time: commits come in between."""
    results: list[MatchPage] = []
    before: int | None = None
    behind = False
    for _ in range(_MAX_PAGES):
        hits, before, late = await journal.search(criteria, keys, before, _POOL)
        behind = behind or late
        size = sum(len(hit.row.body) for hit in hits)
        results.append(await aside(size, owner, partial(_best_of, hits, with_key, criteria, limit)))
        if before is None or results[-1].more or sum(len(result.matches) for result in results) > limit:
            break
    matches = joined(results, limit)
    return MatchPage(matches.matches, matches.more or before is not None, behind)


def _best_of(
    hits: Iterable[Hit], with_key: Callable[[str], Session | None], criteria: Criteria, limit: int
) -> MatchPage:
    return _best(_read(hits, with_key, criteria), criteria, limit)


def _read(hits: Iterable[Hit], with_key: Callable[[str], Session | None], criteria: Criteria) -> Iterator[_Candidate]:
    row: Row | None = None
    for hit in hits:
        session = with_key(hit.row.session)
        if session is None or session.deleted or hit.row.seq < session.begins_at:
            continue
        if hit.row is not row and (row is None or hit.row.seq != row.seq):
            row, messages, first = hit.row, decode_messages(hit.row), first_index(hit.row)
        message, time = messages[hit.part]
        if candidate := _candidate(session, first + hit.part, time, message, criteria):
            yield candidate
