"""The index of words in the file of sessions: what leaves it, and from what it recovers."""

import hashlib
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from cfs_server.domain.words import Criteria, SearchQuery
from cfs_server.journal.journal import Batch
from cfs_server.journal.records import decode_messages
from cfs_server.journal.sqlite import SqliteBackend
from tests.sessions.journal.conformance import Writer
from tests.sessions.journal.test_sqlite import bytes_of, finish, opened


def texts(backend: SqliteBackend, words: str) -> list[str]:
    """Return the texts of the messages with some words."""
    hits = backend.search(Criteria(SearchQuery.parse(words)), None, None, 1_000).hits
    return [decode_messages(hit.row)[hit.part][0].content for hit in hits]


def secret(session: int, message: int) -> str:
    """Return a word that no other message has, and none has a word that begins with its first ten characters."""
    return hashlib.sha256(f"{session} {message}".encode()).hexdigest()[:24]


def remains(path: Path, session: int) -> int:
    """Count the words of a session that are in a file: their ends, since FTS5 stores shared beginnings once."""
    stored = bytes_of(path)
    return sum(secret(session, message)[10:].encode() in stored for message in range(40))


def fill(backend: SqliteBackend, writer: Writer, sessions: int = 20, messages: int = 40) -> None:
    """Store sessions whose messages have words of their own."""
    rng = random.Random(1)
    for number in range(sessions):
        key = f"s{number}"
        backend.commit(
            Batch(
                [
                    writer.created(key),
                    *(
                        writer.message(
                            key,
                            f"secret{number} {secret(number, message)} "
                            + " ".join(f"w{rng.randrange(500)}" for _ in range(30)),
                        )
                        for message in range(messages)
                    ),
                ]
            )
        )
        finish(backend)


def test_no_word_of_a_deleted_session_stays_on_the_disk(tmp_path: Path) -> None:
    """FTS5 keeps the words of deleted documents until its segments are merged, also over a crash in between."""
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        fill(backend, writer)
        assert texts(backend, "secret7") != []
        assert remains(path, 7) == 40
        backend.commit(Batch([writer.deleted("s7")]))
        image = tmp_path / "crash.db"
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{image}{end}")
        assert texts(backend, "secret7") == []
        finish(backend)
        assert (remains(path, 7), remains(path, 8)) == (0, 40)
        assert len(texts(backend, secret(8, 3))) == 1
    with opened(image) as (backend, _):
        assert texts(backend, "secret7") == []
        finish(backend)
        assert (remains(image, 7), remains(image, 8)) == (0, 40)
        assert len(texts(backend, "secret8")) == 40


def test_an_interrupted_merge_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        fill(backend, writer)
        backend.commit(Batch([writer.deleted("s7")]))
        while not backend._index.purging:
            assert backend.tidy()
        image = tmp_path / "crash.db"
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{image}{end}")
    with opened(image) as (backend, _):
        finish(backend)
        assert (remains(image, 7), remains(image, 8)) == (0, 40)
        assert len(texts(backend, "secret8")) == 40


def without_index(path: Path, *statements: str) -> None:
    """Change a closed file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_the_index_of_an_older_file_is_built(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        fill(backend, Writer(found), 3)
    without_index(
        path,
        "DROP TABLE search_words",
        "DROP TABLE search_documents",
        "DELETE FROM meta WHERE name LIKE 'search.%'",
    )
    with opened(path) as (backend, _):
        assert len(texts(backend, secret(2, 39))) == 1
        finish(backend)
        assert len(texts(backend, "secret2")) == 40


def test_what_a_version_without_an_index_did_in_between_is_seen(tmp_path: Path) -> None:
    """It has deleted a session, and its records, without taking them out of the index."""
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        fill(backend, Writer(found), 3)
    without_index(
        path,
        "DELETE FROM records WHERE session = (SELECT id FROM sessions WHERE key = 's1')",
        "DELETE FROM sessions WHERE key = 's1'",
        "INSERT INTO epochs SELECT 'abcd', max(seq), max(position), 1.0 FROM epochs",
    )
    with opened(path) as (backend, _):
        finish(backend)
        assert len(texts(backend, "secret2")) == 40
        assert texts(backend, "secret1") == []
    assert remains(path, 1) == 0


def test_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        fill(backend, writer, 3)
    without_index(path, "UPDATE search_words_data SET block = x'00ff' WHERE id > 10")
    with opened(path) as (backend, _):
        backend.commit(
            Batch([writer.created("new"), *(writer.message("new", f"fresh{n} w1 w2 w3") for n in range(80))])
        )
        finish(backend)
        texts(backend, "secret2")
        finish(backend)
        assert len(texts(backend, "secret2")) == 40
        assert len(texts(backend, "fresh*")) == 80
