"""The index of the text files in workspaces: a SQLite file of its own, which can be built from the files at any time.

One thread has the only connection. A change of a file is put into its queue before the change is acknowledged, and a
search comes after it in the queue: so a search sees each change that was acknowledged. A start compares all files with
the index, and indexes what has changed meanwhile.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path as DiskPath
from queue import SimpleQueue
from typing import Protocol

import structlog

from cfs_filesystem import EntryMeta, FileSystemError, Path
from cfs_server.domain.ids import WORKSPACES
from cfs_server.domain.words import FORMAT, Criteria, Excerpt, words_of

MAX_BYTES = 1 << 20
"""Larger files are not indexed."""
_POOL = 256
"""Files that are read for one search at most: the newest ones that may match."""
_MERGED_PAGES = 64
_TABLES = f"""
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, workspace TEXT, size INTEGER, time REAL);
CREATE VIRTUAL TABLE words USING fts5(text, tokenize='ascii', columnsize=0);
CREATE TABLE format AS SELECT '{FORMAT}' AS name;
"""

_log = structlog.get_logger(__name__)


class FileTree(Protocol):
    """What the index reads."""

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Yield the entries that a prefix covers."""
        ...

    def look(self, path: Path) -> EntryMeta:
        """Return the metadata of an entry."""
        ...

    def read(self, path: Path) -> bytes:
        """Return the content of an entry."""
        ...


@dataclass(frozen=True, slots=True)
class FileMatch:
    """A file that contains the words. `line` is that of the first match, from 1."""

    workspace: str
    path: str
    line: int
    time: float
    score: float
    excerpt: Excerpt


class FileIndex:
    """The index of one folder of workspaces."""

    def __init__(self, tree: FileTree, place: DiskPath | None) -> None:
        """Begin to compare the files with the index in the file `place`; without one, it is in memory."""
        self._tree = tree
        self._place = place
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._scan: Iterator[None] | None = None
        self._merge = -_MERGED_PAGES
        """Pages that the next step of a merge rewrites; negative for the first step, 0 if there is none to do."""
        self._thread = threading.Thread(target=self._run, name="file-index", daemon=True)
        self._thread.start()

    def changed(self, *paths: Path) -> None:
        """Index files again, or what is below directories. Returns at once; any thread may call it."""
        for path in paths:
            self._queue.put(lambda path=path: self._compare_all(path))  # type: ignore[misc]

    async def search(
        self, criteria: Criteria, may_read: Callable[[Path], bool], within: str, limit: int
    ) -> list[FileMatch]:
        """Return the best matches in files that the caller may read, of one workspace or, if it is empty, of all."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[FileMatch]] = loop.create_future()

        def run() -> None:
            try:
                matches = self._search(criteria, may_read, within, limit)
            except (sqlite3.Error, FileSystemError) as error:
                _log.error("the index of files cannot be read", reason=str(error))
                matches = []
            loop.call_soon_threadsafe(_resolve, done, matches)

        self._queue.put(run)
        return await done

    def close(self) -> None:
        """End the thread, after the changes that it still has to index."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._connection = self._open()
        except (sqlite3.Error, OSError) as error:
            _log.error("the index of files cannot be opened; it is in memory", reason=str(error))
            self._place = None
            self._connection = self._open()
        self._scan = self._compare(WORKSPACES)
        while (work := self._next()) is not None:
            with suppress(FileSystemError):
                try:
                    work()
                except sqlite3.Error as error:
                    _log.error("a file cannot be indexed", reason=str(error))
        self._scan = None
        while self._work_on():
            pass
        self._connection.close()

    def _next(self) -> Callable[[], None] | None:
        """Return what is to be done next; do other work while there is nothing."""
        while self._queue.empty() and self._work_on():
            pass
        return self._queue.get()

    def _work_on(self) -> bool:
        """Do a step of the scan, or remove words of deleted files. Returns whether there was something to do."""
        try:
            if self._scan is not None:
                next(self._scan)
            elif self._merge != 0:
                before = self._connection.total_changes
                self._connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (self._merge,))
                self._merge = _MERGED_PAGES if self._connection.total_changes - before >= 2 else 0
            else:
                return False
        except (StopIteration, sqlite3.Error, FileSystemError):
            self._scan = None
        return True

    def _open(self) -> sqlite3.Connection:
        if self._place is not None:
            os.close(os.open(self._place, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._place or ":memory:", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = OFF")  # it can be built again
        with suppress(sqlite3.Error):
            if connection.execute("SELECT name FROM format").fetchone() == (FORMAT,):
                return connection
        for name in ("files", "words", "format"):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.executescript(_TABLES)
        return connection

    def _compare_all(self, path: Path) -> None:
        for _ in self._compare(path):
            pass

    def _compare(self, path: Path) -> Iterator[None]:
        """Compare files with the index, a file at a time, and index what differs."""
        base = path.rstrip("/")
        stored: dict[str, tuple[int, int, float]] = {
            name: (number, size, time)
            for number, name, size, time in self._connection.execute(
                "SELECT id, path, size, time FROM files WHERE path = ? OR (path > ? AND path < ?)",
                (base, f"{base}/", f"{base}0"),
            )
        }
        removed = False
        for name, meta in self._tree.entries(path if path == WORKSPACES else base):
            facts = meta["size"], meta["updated_at"].timestamp()
            entry = stored.pop(name, None)
            if entry is None or entry[1:] != facts:
                removed = removed or entry is not None
                self._put(name, None if entry is None else entry[0], facts)
            yield
        for number, *_ in stored.values():
            removed = True
            self._delete(number)
        if removed:  # FTS5 keeps deleted words until it merges all of its segments
            self._merge = -_MERGED_PAGES

    def _put(self, name: str, number: int | None, facts: tuple[int, float]) -> None:
        text = self._text(name) if facts[0] <= MAX_BYTES else None
        workspace = name.removeprefix(WORKSPACES).partition("/")[0]
        with self._connection:
            self._connection.execute("BEGIN")
            if number is not None:
                self._delete(number)
            row = self._connection.execute(
                "INSERT INTO files (path, workspace, size, time) VALUES (?, ?, ?, ?)", (name, workspace, *facts)
            )
            if text and (words := words_of(text)):
                text = " ".join([_workspace_word(workspace), *words])
                self._connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (row.lastrowid, text))

    def _delete(self, number: int) -> None:
        self._connection.execute("DELETE FROM words WHERE rowid = ?", (number,))
        self._connection.execute("DELETE FROM files WHERE id = ?", (number,))

    def _text(self, name: Path) -> str | None:
        """Return the text of a file; None if it is not text, or is gone."""
        with suppress(FileSystemError, UnicodeDecodeError):
            data = self._tree.read(name)
            if b"\0" not in data:
                return data.decode()
        return None

    def _search(self, criteria: Criteria, may_read: Callable[[Path], bool], within: str, limit: int) -> list[FileMatch]:
        names = [name for (name,) in self._connection.execute("SELECT DISTINCT workspace FROM files")]
        workspaces = [name for name in names if (not within or name == within) and may_read(f"{WORKSPACES}{name}/")]
        terms = [f'"{" ".join(term.words)}"' + (" *" if term.prefix else "") for term in criteria.query.terms]
        matches: list[FileMatch] = []
        for start in range(0, len(workspaces), _POOL):
            some = workspaces[start : start + _POOL]
            alternatives = " OR ".join(f'"{_workspace_word(name)}"' for name in some)
            rows = self._connection.execute(
                "SELECT path, workspace, time FROM words JOIN files ON files.id = words.rowid"
                " WHERE words MATCH ? AND time >= ? ORDER BY time DESC LIMIT ?",
                (" AND ".join([*terms, f"({alternatives})"]), criteria.since, _POOL),
            ).fetchall()
            readable = (row for row in rows if may_read(row[0]))
            matches += [match for row in readable if (match := self._match(criteria, *row)) is not None]
        matches.sort(key=lambda match: (match.score, match.time), reverse=True)
        return matches[:limit]

    def _match(self, criteria: Criteria, path: Path, workspace: str, time: float) -> FileMatch | None:
        text = self._text(path) or ""
        excerpt = criteria.query.match(text)
        if excerpt is None:
            return None
        line = text.count("\n", 0, excerpt.begin) + 1
        inner = path.removeprefix(f"{WORKSPACES}{workspace}/")
        return FileMatch(workspace, inner, line, time, criteria.query.score(text), excerpt)


def _resolve(done: "asyncio.Future[list[FileMatch]]", matches: list[FileMatch]) -> None:
    if not done.done():
        done.set_result(matches)


def _workspace_word(name: str) -> str:
    """Return a word that no file contains, for all files of a workspace."""
    return f"\ue001{sha256(name.encode()).hexdigest()[:16]}"
