"""A store of versions in a SQLite file, or in memory.

Contents are addressed by their SHA-256 within one scope: a workspace and its forks. Nothing is shared between scopes,
so that neither the size of the store nor the time of a write tells anything of another workspace.

A commit survives the end of the process at once, and a power loss after the next `checkpoint`. A power loss before it
takes versions, never files: the next look at the folder records what is there.
"""

import hashlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, cast

from cfs_filesystem._errors import NotFoundError
from cfs_filesystem.versions.codec import LARGE, Basis, chunks, encode
from cfs_filesystem.versions.model import (
    Author,
    Change,
    Content,
    Entry,
    EntryType,
    Kind,
    State,
    VersionRetention,
    equal,
    require_kept,
)
from cfs_filesystem.versions.sqlite_contents import SqliteContents
from cfs_filesystem.versions.sqlite_file import RememberedRows, SqliteFile

_ENTRY = "path, number, at, type, mode, size, digest, stamp"
_AMONG = "number IN (SELECT value FROM json_each(?))"
_WORKSPACE = """
SELECT id, scope, last, oldest, changes.at FROM workspaces
LEFT JOIN changes ON changes.workspace = id AND changes.number = last WHERE name = ?
"""


@dataclass(frozen=True, slots=True)
class _WorkspaceRow:
    """The row of a workspace, with the time of its last change; None if that is not kept."""

    id: int
    scope: bytes
    last: int
    oldest: int
    at: float | None


class SqliteVersions:
    """A `VersionStore` in a file that only its owner can read, or, without a path, in memory.

    Only one program may have the file open, so `changing` has nothing to do. `clock` returns the time of changes.
    """

    shared = False

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Open or create the file. Raises `OSError`, and `DamagedVersionError` if it is no store of versions."""
        self.path = path
        self._clock = clock
        self._holds = 0
        self._file = SqliteFile(path)
        self._contents = SqliteContents(self._file)
        self._workspaces: RememberedRows[str, _WorkspaceRow | None] = self._file.remembered()
        self._newest: RememberedRows[tuple[int, str], Entry | None] = self._file.remembered()

    def close(self) -> None:
        """See `VersionStore`."""
        self._file.close()

    def checkpoint(self) -> None:
        """See `VersionStore`. Writers go on meanwhile."""
        self._file.checkpoint()

    def prepare(
        self,
        workspace: str,
        data: bytes,
        previous: Entry | None = None,
        previous_data: Callable[[], bytes] | None = None,
    ) -> Content:
        """See `VersionStore`."""
        digest = hashlib.sha256(data).digest()
        with self._file.lock:
            scope = self._scope(workspace)
            basis = Basis() if scope is None else self._contents.basis(scope, digest, data, previous, previous_data)
        if basis is None:
            return Content(digest, len(data), data)
        return Content(digest, len(data), data, encode(data, basis.dictionary), basis.id, basis.step)

    def changing(self, workspaces: Iterable[str], path: str | None = None) -> AbstractContextManager[None]:  # noqa: ARG002
        """See `VersionStore`."""
        return nullcontext()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """See `VersionStore`."""
        with self._file.lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._file.lock:
                self._holds -= 1

    def keep(self, workspace: str, source: BinaryIO, previous: Entry | None = None) -> Content:
        """See `VersionStore`."""
        data = source.read(LARGE + 1)
        if len(data) <= LARGE:
            usable = previous is not None and previous.type is EntryType.FILE and 0 < previous.size <= LARGE
            before = partial(self.read, workspace, previous) if previous is not None and usable else None
            content = self.prepare(workspace, data, previous, before)
            with self._file.transaction(keeps=True):
                self._contents.store(self._made(workspace).scope, content)
            return Content(content.digest, content.size)
        return self._keep_chunks(workspace, data, source)

    def _keep_chunks(self, workspace: str, beginning: bytes, source: BinaryIO) -> Content:
        digest, size, parts = hashlib.sha256(), 0, []
        for chunk in chunks(beginning, source):
            digest.update(chunk)
            size += len(chunk)
            part = Content(hashlib.sha256(chunk).digest(), len(chunk), chunk, encode(chunk))
            with self._file.transaction():
                self._contents.store(self._made(workspace).scope, part)
            parts.append(part.digest)
        with self._file.transaction():
            self._contents.store(self._made(workspace).scope, Content(digest.digest(), size, parts=tuple(parts)))
        return Content(digest.digest(), size)

    def content_of(self, entry: Entry) -> Content:
        """See `VersionStore`."""
        return Content(bytes.fromhex(entry.digest), entry.size)

    def record(
        self,
        workspace: str,
        author: Author,
        kind: Kind,
        states: Mapping[str, State | None],
        above: Mapping[str, State] = MappingProxyType({}),
        *,
        ends: bool = False,  # noqa: ARG002
    ) -> int:
        """See `VersionStore`."""
        with self._file.transaction(keeps=True):
            states = {path: state for path, state in above.items() if not self._is_folder(workspace, path)} | dict(
                states
            )
            known = self._made(workspace)
            number = known.last + 1
            now = self._clock() if known.at is None else max(self._clock(), known.at)
            row = (known.id, number, now, author.principal, author.agent, author.call, kind)
            self._file.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._file.execute("UPDATE workspaces SET last = ? WHERE id = ?", (number, known.id))
            for path, state in states.items():
                content = None if state is None else state.content
                if content is not None:
                    self._contents.store(known.scope, content)
                values = (
                    (None, None, None, None, "")
                    if state is None
                    else (
                        state.type,
                        state.mode,
                        0 if content is None else content.size,
                        None if content is None else content.digest,
                        state.stamp,
                    )
                )
                self._file.execute(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (known.id, os.fsencode(path), number, now, *values),
                )
                entry = None if state is None else _recorded(path, number, now, state)
                self._newest[known.id, path] = entry
            self._workspaces[workspace] = replace(known, last=number, at=now)
        return number

    def _is_folder(self, workspace: str, path: str) -> bool:
        newest = self.at(workspace, path)
        return newest is not None and newest.type is EntryType.FOLDER

    def restamp(self, workspace: str, stamps: Mapping[str, str]) -> None:
        """See `VersionStore`."""
        with self._file.transaction():
            name = self._made(workspace).id
            for path, stamp in stamps.items():
                key = (name, os.fsencode(path))
                self._file.execute(
                    "UPDATE entries SET stamp = ? WHERE workspace = ? AND path = ? AND number ="
                    " (SELECT max(number) FROM entries WHERE workspace = ? AND path = ?)",
                    (stamp, *key, *key),
                )

    def last(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._file.lock:
            row = self._workspace(workspace)
            return 0 if row is None else row.last

    def oldest(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._file.lock:
            row = self._workspace(workspace)
            return 0 if row is None else row.oldest

    def number_at(self, workspace: str, time: float, order: int | None = None) -> int:  # noqa: ARG002
        """See `VersionStore`."""
        with self._file.lock:
            row = self._workspace(workspace)
            if row is None:
                return 0
            result = self._file.one("SELECT max(number) n FROM changes WHERE workspace = ? AND at <= ?", row.id, time)
            if result["n"] is None and row.oldest > 0:
                raise NotFoundError(f"the past of {workspace!r} before its change {row.oldest} is no longer kept")
            return int(result["n"] or 0)

    def common(self, workspace: str, other: str) -> int | None:
        """See `VersionStore`."""
        with self._file.lock:
            one, two = self._workspace(workspace), self._workspace(other)
            if one is None or two is None or one.scope != two.scope:
                return None
            shared = self._file.one(
                "SELECT max(one.number) n FROM changes one JOIN changes two USING (number, at)"
                " WHERE one.workspace = ? AND two.workspace = ?",
                one.id,
                two.id,
            )
            return cast("int | None", shared["n"])

    def at(self, workspace: str, path: str, number: int | None = None) -> Entry | None:
        """See `VersionStore`."""
        with self._file.lock:
            row = self._required(workspace, number)
            if row is None:
                return None
            if number is None and (row.id, path) in self._newest:
                return self._newest[row.id, path]
            match = self._file.one(
                f"SELECT {_ENTRY} FROM entries WHERE workspace = ? AND path = ? AND number <= ?"  # noqa: S608
                " ORDER BY number DESC LIMIT 1",
                row.id,
                os.fsencode(path),
                row.last if number is None else number,
            )
            entry = None if match is None else _entry(match)
            if number is None:
                self._newest[row.id, path] = entry
            return entry

    def tree_at(self, workspace: str, number: int | None = None, below: str = "") -> dict[str, Entry]:
        """See `VersionStore`."""
        with self._file.lock:
            row = self._required(workspace, number)
            if row is None:
                return {}
            rows = self._file.all(
                # SQLite takes the other columns from the row with the maximum
                "SELECT path, max(number) number, at, type, mode, size, digest, stamp FROM entries"  # noqa: S608
                f" WHERE workspace = ? AND number <= ? AND {_BELOW} GROUP BY path HAVING type IS NOT NULL",
                row.id,
                row.last if number is None else number,
                *_below(below),
            )
        return {entry.path: entry for record in rows if (entry := _entry(record)) is not None}

    def paths(self, workspace: str, below: str = "") -> dict[str, Entry]:
        """See `VersionStore`."""
        with self._file.lock:
            row = self._workspace(workspace)
            if row is None:
                return {}
            rows = self._file.all(
                "SELECT path, max(number) number, at, type, mode, size, digest, stamp FROM entries"  # noqa: S608
                f" WHERE workspace = ? AND type IS NOT NULL AND {_BELOW} GROUP BY path",
                row.id,
                *_below(below),
            )
        return {entry.path: entry for record in rows if (entry := _entry(record)) is not None}

    def changes(
        self, workspace: str, path: str = "", before: int | None = None, limit: int | None = None
    ) -> Sequence[Change]:
        """See `VersionStore`."""
        with self._file.lock:
            row = self._workspace(workspace)
            if row is None:
                return ()
            numbers = [
                record["number"]
                for record in self._file.all(
                    f"SELECT DISTINCT number FROM entries WHERE workspace = ? AND number < ? AND {_BELOW}"  # noqa: S608
                    " AND EXISTS (SELECT 1 FROM changes WHERE changes.workspace = entries.workspace"
                    " AND changes.number = entries.number) ORDER BY number DESC LIMIT ?",
                    row.id,
                    row.last + 1 if before is None else before,
                    *_below(path),
                    -1 if limit is None else limit,
                )
            ]
            return self._changes(row.id, numbers, path) if numbers else ()

    def _changes(self, name: int, numbers: Sequence[int], below: str) -> list[Change]:
        """Return these changes, with what they did at and below a path."""
        which = (name, json.dumps(numbers))
        rows = self._file.all(f"SELECT * FROM changes WHERE workspace = ? AND {_AMONG}", *which)  # noqa: S608
        changes = {row["number"]: row for row in rows}
        entries: dict[int, dict[str, Entry | None]] = {number: {} for number in numbers}
        for row in self._file.all(
            f"SELECT {_ENTRY} FROM entries WHERE workspace = ? AND {_AMONG} AND {_BELOW} ORDER BY path",  # noqa: S608
            *which,
            *_below(below),
        ):
            entries[row["number"]][os.fsdecode(row["path"])] = _entry(row)
        return [
            Change(
                number,
                changes[number]["at"],
                Author(changes[number]["principal"], changes[number]["agent"], changes[number]["call"]),
                Kind(changes[number]["kind"]),
                entries[number],
            )
            for number in numbers
        ]

    def changes_between(self, workspace: str, first: int, last: int) -> dict[str, tuple[Entry | None, Entry | None]]:
        """See `VersionStore`."""
        with self._file.lock:
            row = self._required(workspace, first)
            self._required(workspace, last)
            if row is None:
                return {}
            low, high = sorted((first, last))
            paths = [
                os.fsdecode(record["path"])
                for record in self._file.all(
                    "SELECT DISTINCT path FROM entries WHERE workspace = ? AND number > ? AND number <= ?",
                    row.id,
                    low,
                    high,
                )
            ]
            pairs = {path: (self.at(workspace, path, first), self.at(workspace, path, last)) for path in sorted(paths)}
        return {path: (one, other) for path, (one, other) in pairs.items() if not equal(one, other)}

    def read(self, workspace: str, entry: Entry) -> bytes:
        """See `VersionStore`."""
        with self.open(workspace, entry) as content:
            return content.read()

    def open(self, workspace: str, entry: Entry) -> BinaryIO:
        """See `VersionStore`."""
        return self._open(workspace, entry, remembered=True)

    def _open(self, workspace: str, entry: Entry, *, remembered: bool) -> BinaryIO:
        if not entry.digest:
            return BytesIO()
        with self._file.lock:
            scope = self._scope(workspace)
        return self._contents.open(scope, entry, remembered=remembered)

    def workspaces(self) -> Sequence[str]:
        """See `VersionStore`."""
        with self._file.lock:
            return [os.fsdecode(row["name"]) for row in self._file.all("SELECT name FROM workspaces ORDER BY name")]

    def usage(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._file.lock:
            return self._contents.size(self._scope(workspace))

    def fork(self, workspace: str, copy: str) -> None:
        """See `VersionStore`."""
        with self._file.transaction():
            self._forget(copy)
            row = self._workspace(workspace)
            if row is None:
                return
            new_id = self._file.execute(
                "INSERT INTO workspaces (name, scope, last, oldest) VALUES (?, ?, ?, ?)",
                (os.fsencode(copy), row.scope, row.last, row.oldest),
            ).lastrowid
            for table, columns in (
                ("changes", "number, at, principal, agent, call, kind"),
                ("entries", "path, number, at, type, mode, size, digest, ''"),
            ):
                self._file.execute(
                    f"INSERT INTO {table} SELECT ?, {columns} FROM {table} WHERE workspace = ?",  # noqa: S608
                    (new_id, row.id),
                )

    def rename(self, workspace: str, name: str) -> None:
        """See `VersionStore`."""
        with self._file.transaction():
            self._forget(name)
            self._file.execute(
                "UPDATE workspaces SET name = ? WHERE name = ?", (os.fsencode(name), os.fsencode(workspace))
            )

    def purge(self, workspace: str) -> None:
        """See `VersionStore`."""
        with self._file.transaction():
            self._forget(workspace)
        self._file.shrink()

    def _forget(self, workspace: str) -> None:
        row = self._workspace(workspace)
        if row is None:
            return
        for table, column in (("entries", "workspace"), ("changes", "workspace"), ("workspaces", "id")):
            self._file.execute(f"DELETE FROM {table} WHERE {column} = ?", (row.id,))  # noqa: S608
        self._contents.forget(row.scope)

    def claim_pruning(self, seconds: float) -> bool:  # noqa: ARG002
        """See `VersionStore`. The caller keeps the time."""
        return True

    def prune(self, workspace: str, retention: VersionRetention) -> int:
        """See `VersionStore`."""
        with self._file.transaction():
            row = self._workspace(workspace)
            if row is None or self._holds:
                return 0 if row is None else row.oldest
            oldest = row.oldest
            if retention.changes is not None:
                oldest = max(oldest, row.last - retention.changes)
            if retention.seconds is not None:
                result = self._file.one(
                    "SELECT max(number) n FROM changes WHERE workspace = ? AND at <= ?",
                    row.id,
                    time.time() - retention.seconds,
                )
                oldest = max(oldest, result["n"] or 0)
            self._cut(row, oldest)
            while retention.size is not None and self.usage(workspace) > retention.size and oldest < row.last:
                oldest += max(1, (row.last - oldest) // 8)
                self._cut(row, oldest)
        if oldest != row.oldest:
            self._file.shrink()
        return oldest

    def _cut(self, row: _WorkspaceRow, oldest: int) -> None:
        """Forget what can be read only before the change `oldest`."""
        self._file.execute("DELETE FROM changes WHERE workspace = ? AND number < ?", (row.id, oldest))
        self._file.execute(
            "DELETE FROM entries WHERE workspace = ? AND number <= ? AND (EXISTS (SELECT 1 FROM entries later"
            " WHERE later.workspace = entries.workspace AND later.path = entries.path"
            " AND later.number > entries.number AND later.number <= ?) OR (type IS NULL AND number < ?))",
            (row.id, oldest, oldest, oldest),
        )
        self._file.execute("UPDATE workspaces SET oldest = ? WHERE id = ?", (oldest, row.id))
        self._contents.collect(row.scope)

    def check_integrity(self) -> None:
        """See `VersionStore`."""
        self._file.check_integrity()
        for workspace in self.workspaces():
            name = self._made(workspace).id
            for row in self._file.all(f"SELECT {_ENTRY} FROM entries WHERE workspace = ?", name):  # noqa: S608
                if (entry := _entry(row)) is not None and entry.digest:
                    self._open(workspace, entry, remembered=False).close()

    def backup(self, target: Path) -> None:
        """Write a copy of the store, which is in use, to a new file that only its owner can read. Raises `OSError`."""
        self._file.backup(target)

    def _workspace(self, workspace: str) -> _WorkspaceRow | None:
        if workspace not in self._workspaces:
            row = self._file.one(_WORKSPACE, os.fsencode(workspace))
            self._workspaces[workspace] = None if row is None else _WorkspaceRow(*row)
        return self._workspaces[workspace]

    def _required(self, workspace: str, number: int | None) -> _WorkspaceRow | None:
        """Return the row of a workspace, None if it has no changes. Raises `NotFoundError` for a wrong number."""
        row = self._workspace(workspace)
        last, oldest = (0, 0) if row is None else (row.last, row.oldest)
        require_kept(workspace, number, oldest, last)
        return row

    def _made(self, workspace: str) -> _WorkspaceRow:
        """Return the row of a workspace, which is created if it does not exist."""
        row = self._workspace(workspace)
        if row is None:
            scope = secrets.token_bytes(16)
            row_id = self._file.execute(
                "INSERT INTO workspaces (name, scope) VALUES (?, ?)", (os.fsencode(workspace), scope)
            ).lastrowid
            row = self._workspaces[workspace] = _WorkspaceRow(cast("int", row_id), scope, 0, 0, None)
        return row

    def _scope(self, workspace: str) -> bytes | None:
        row = self._workspace(workspace)
        return None if row is None else row.scope


_BELOW = "(? = X'' OR path = ? OR (path > ? AND path < ?))"


def _below(path: str) -> tuple[bytes, bytes, bytes, bytes]:
    name = os.fsencode(path)
    return name, name, name + b"/", name + b"0"  # "0" follows "/"


def _recorded(path: str, number: int, at: float, state: State) -> Entry:
    size, digest = (0, "") if state.content is None else (state.content.size, state.content.digest.hex())
    return Entry(path, number, at, state.type, state.mode, size, digest, state.stamp)


def _entry(row: sqlite3.Row) -> Entry | None:
    if row["type"] is None:
        return None
    digest = "" if row["digest"] is None else row["digest"].hex()
    return Entry(
        os.fsdecode(row["path"]),
        row["number"],
        row["at"],
        EntryType(row["type"]),
        row["mode"],
        row["size"],
        digest,
        row["stamp"],
    )
