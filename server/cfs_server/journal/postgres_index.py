"""The index of words in one slot of a database: a GIN index over the words of each message.

Messages are indexed some at a time, after the commits that store them, and before each search. Positions are not
stored, because a message may have more than PostgreSQL allows: for a phrase, all messages with its words are read.
"""

from collections.abc import Sequence
from itertools import accumulate

from cfs.wire import Message
from cfs_server.domain.words import FORMAT, Criteria, document_words
from cfs_server.journal.journal import Hit, Hits
from cfs_server.journal.postgres_connection import Connection
from cfs_server.journal.records import HISTORY, Row, decode_messages

_STEP_ROWS, _STEP_SPAN = 200, 5_000
"""Records with messages, and all records, that one step looks at. A step delays the next commit."""
_MAX_BYTES = 1 << 19
"""Bytes of different words of a message; the rest is not found. PostgreSQL has a limit of 1 MiB."""
_PARTS = 1 << 20
"""More than a record has messages. The number of a hit is that of its record, times this, and of the message."""
_COLUMNS = "records.seq, session, at, kind, version, author, body, events, number, position"


class PostgresIndex:
    """The index of one slot. All methods run in the journal's thread; `step` in a transaction of the owner."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._seq: int | None = None
        """The last indexed record; None if that is not known."""
        self.behind = True

    def forget(self) -> None:
        """Read how far the index is at the next step: the last one may have failed."""
        self._seq, self.behind = None, True

    def step(self, connection: Connection) -> None:
        """Index some records."""
        seq = self._begin(connection) if self._seq is None else self._seq
        last = _number(connection, "SELECT coalesce(max(seq), 0) FROM cfs.records WHERE slot = %s", self._slot)
        end = min(last, seq + _STEP_SPAN)
        rows = [
            Row(*values)
            for values in connection.execute(
                f"SELECT {_COLUMNS} FROM cfs.records JOIN cfs.sessions ON sessions.slot = records.slot"  # noqa: S608
                " AND key = session WHERE records.slot = %s AND records.seq > %s AND records.seq <= %s"
                " AND kind = ANY(%s) AND deleted IS NULL ORDER BY records.seq LIMIT %s",
                (self._slot, seq, end, list(HISTORY), _STEP_ROWS),
            )
        ]
        documents = [
            (row.seq, part, text)
            for row in rows
            for part, (message, _) in enumerate(decode_messages(row))
            if (text := _text(row, message))
        ]
        if documents:
            connection.execute(
                "INSERT INTO cfs.words (slot, seq, part, words)"
                " SELECT %s, seq, part, array_to_tsvector(string_to_array(text, ' '))"
                " FROM unnest(%b::bigint[], %b::integer[], %b::text[]) AS new (seq, part, text)",
                (self._slot, *map(list, zip(*documents, strict=True))),
            )
        for row in rows:
            if row.kind == HISTORY[1]:
                connection.execute(
                    "DELETE FROM cfs.words USING cfs.records WHERE records.slot = %s AND session = %s"
                    " AND records.seq < %s AND words.slot = records.slot AND words.seq = records.seq",
                    (self._slot, row.session, row.seq),
                )
        self._seq = rows[-1].seq if len(rows) == _STEP_ROWS else max(seq, end)
        connection.execute("UPDATE cfs.indexes SET indexed = %s WHERE slot = %s", (self._seq, self._slot))
        self.behind = self._seq < last

    def _begin(self, connection: Connection) -> int:
        """Return how far the index is. One of another format is deleted."""
        entry = connection.execute("SELECT format, indexed FROM cfs.indexes WHERE slot = %s", (self._slot,)).fetchone()
        if entry is not None and entry[0] == FORMAT:
            return int(entry[1])
        connection.execute("DELETE FROM cfs.words WHERE slot = %s", (self._slot,))
        connection.execute(
            "INSERT INTO cfs.indexes VALUES (%s, %s, 0) ON CONFLICT (slot) DO UPDATE SET format = %s, indexed = 0",
            (self._slot, FORMAT, FORMAT),
        )
        return 0

    def search(
        self,
        connection: Connection,
        criteria: Criteria,
        keys: Sequence[str] | None,
        before: int | None,
        max_hits: int,
    ) -> Hits:
        """Return messages that may match; see `Backend.search`."""
        start = divmod(1 << 62 if before is None else before, _PARTS)
        numbers = (
            self._of_all(connection, criteria, start, max_hits)
            if keys is None
            else self._of_some(connection, criteria, keys, start, max_hits)
        )
        rows = connection.execute(
            f"SELECT page.part, {_COLUMNS} FROM unnest(%s::bigint[], %s::integer[]) AS page (seq, part)"  # noqa: S608
            " JOIN cfs.records ON records.slot = %s AND records.seq = page.seq"
            " JOIN cfs.sessions ON sessions.slot = records.slot AND key = session"
            " WHERE deleted IS NULL ORDER BY page.seq DESC, page.part DESC",
            ([seq for seq, _ in numbers], [part for _, part in numbers], self._slot),
        ).fetchall()
        hits = [Hit(Row(*values), part) for part, *values in rows]
        recent = [hit for hit in hits if hit.row.at >= criteria.since]
        more = len(numbers) == max_hits and (len(recent) > 0 or not hits)
        return Hits(recent, numbers[-1][0] * _PARTS + numbers[-1][1] if more else None, self.behind)

    def _of_all(
        self, connection: Connection, criteria: Criteria, before: tuple[int, int], max_hits: int
    ) -> list[tuple[int, int]]:
        """Return the newest messages that may match: their records, and their places in these."""
        return connection.execute(
            "SELECT seq, part FROM cfs.words WHERE slot = %s AND words @@ %s::tsquery AND (seq, part) < (%s, %s)"
            " ORDER BY seq DESC, part DESC LIMIT %s",
            (self._slot, expression(criteria), *before, max_hits),
        ).fetchall()

    def _of_some(
        self, connection: Connection, criteria: Criteria, keys: Sequence[str], before: tuple[int, int], max_hits: int
    ) -> list[tuple[int, int]]:
        """Return the newest messages of some sessions that may match, by looking each session up in the index.

        The planner would rather read the messages of all sessions, newest first, until enough match: that takes long,
        and its time would tell about others. `OFFSET 0` and the setting keep it from that. Beginnings of words are
        compared with each message, because the index would collect all words for each session again.
        """
        words, beginnings = _whole(criteria), _beginnings(criteria)
        with connection.transaction():
            connection.execute("SET LOCAL enable_seqscan = off")
            return connection.execute(
                "SELECT seq, part FROM unnest(%s::text[]) AS session (query), LATERAL"
                " (SELECT slot, seq, part, words FROM cfs.words WHERE words @@ query::tsquery OFFSET 0) AS own"
                " WHERE slot = %s AND (%s OR words @@ %s::tsquery) AND (seq, part) < (%s, %s)"
                " ORDER BY seq DESC, part DESC LIMIT %s",
                (
                    [" & ".join([*words, *_one_of(criteria, [key])]) for key in keys],
                    self._slot,
                    not beginnings,
                    " & ".join(beginnings),
                    *before,
                    max_hits,
                ),
            ).fetchall()


def expression(criteria: Criteria) -> str:
    """Return a `tsquery`. Words have no characters that mean something there."""
    return " & ".join([*_whole(criteria), *_beginnings(criteria), *_one_of(criteria, None)])


def _whole(criteria: Criteria) -> list[str]:
    return [f"'{word}'" for term in criteria.query.terms for word in (term.words[:-1] if term.prefix else term.words)]


def _beginnings(criteria: Criteria) -> list[str]:
    return [f"'{term.words[-1]}':*" for term in criteria.query.terms if term.prefix]


def _one_of(criteria: Criteria, keys: Sequence[str] | None) -> list[str]:
    return ["(" + " | ".join(f"'{word}'" for word in words) + ")" for words in criteria.alternatives(keys)]


def _text(row: Row, message: Message) -> str:
    words = list(dict.fromkeys(document_words(message.role, row.session, message.content)))
    sizes = accumulate(len(word.encode()) for word in words)
    return " ".join(word for word, size in zip(words, sizes, strict=True) if size <= _MAX_BYTES)


def _number(connection: Connection, query: str, *values: object) -> int:
    ((number,),) = connection.execute(query, values).fetchall()
    return int(number)
