"""The contents in a store of versions: each is there once in its scope, whole, against another one, or in parts."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from cfs_filesystem._errors import NotFoundError
from cfs_filesystem.versions.codec import LARGE, STRIDE, Basis, basis_after, decode_chain, encode, verified
from cfs_filesystem.versions.model import Content, Entry
from cfs_filesystem.versions.recent import RecentContents
from cfs_filesystem.versions.sqlite_file import RememberedRows, SqliteFile

_CHAIN = """
WITH RECURSIVE chain (depth, id, base, size, data) AS (
    SELECT 0, id, base, size, data FROM contents WHERE id = ?
    UNION ALL SELECT depth + 1, contents.id, contents.base, contents.size, contents.data
    FROM chain JOIN contents ON contents.id = chain.base
) SELECT size, data FROM chain ORDER BY depth DESC
"""
_UNUSED = """
SELECT id FROM contents WHERE scope = :scope
AND NOT EXISTS (
    SELECT 1 FROM workspaces CROSS JOIN entries ON entries.workspace = workspaces.id
    WHERE workspaces.scope = :scope AND entries.digest = contents.digest
) AND NOT EXISTS (SELECT 1 FROM parts WHERE part = contents.id)
"""


@dataclass(frozen=True, slots=True)
class _ContentRow:
    """The row of a content. One that is not whole consists of parts."""

    id: int
    base: int | None
    step: int
    whole: int


class SqliteContents:
    """The contents of all scopes. A caller holds the file's lock; only `open` takes it itself."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._recent = RecentContents()
        self._rows: RememberedRows[tuple[bytes, bytes], _ContentRow] = file.remembered()

    def basis(
        self,
        scope: bytes,
        digest: bytes,
        data: bytes,
        previous: Entry | None,
        previous_data: Callable[[], bytes] | None,
    ) -> Basis | None:
        """Choose what the bytes of a file are encoded against; return None if they are stored already."""
        before = b"" if previous is None else bytes.fromhex(previous.digest)
        edited = digest != before and (scope, before) in self._rows  # most writes: saves a look into the file
        if not edited and self._find(scope, digest) is not None:
            return None
        basis = Basis()
        if previous is not None and previous_data is not None and previous.size:
            basis = self._after(scope, before, previous_data)
        self._recent.add(scope, digest, data)
        return basis

    def _after(self, scope: bytes, before: bytes, before_data: Callable[[], bytes]) -> Basis:
        """Choose the dictionary of the content that follows `before`."""
        stored, data = self._find(scope, before), self._recent.get(scope, before)
        if data is None:
            data = before_data()
            if hashlib.sha256(data).digest() != before:  # the version would be unreadable
                return Basis()
        if stored is None or not stored.whole:
            return Basis()
        return basis_after(stored.id, stored.step, data, partial(self._key_of, stored))

    def _key_of(self, stored: _ContentRow) -> tuple[int, bytes]:
        """Return the id and the bytes of the key that a content goes back to."""
        key, base, step = stored.id, stored.base, stored.step
        while base is not None and step % STRIDE:
            key, base, step = self._file.one("SELECT id, base, step FROM contents WHERE id = ?", base)
        return key, self._decoded(key)

    def store(self, scope: bytes, content: Content) -> None:
        """Store a content unless it is there. Its base may have been removed since it was chosen.

        Raises `NotFoundError` if its parts were removed, or it has no bytes and is not there.
        """
        there = self._file.one(
            "SELECT EXISTS (SELECT 1 FROM contents WHERE scope = ? AND digest = ?) content,"
            " EXISTS (SELECT 1 FROM contents WHERE id = ?) base",
            scope,
            content.digest,
            content.base,
        )
        if there["content"]:
            return
        encoded, base, step = content.encoded, content.base, content.step
        gone = base is not None and not there["base"]
        if content.parts is None and (encoded is None or gone):
            if content.raw is None:
                raise NotFoundError("the content is no longer kept")
            encoded, base, step = encode(content.raw), None, 0
        cursor = self._file.execute(
            "INSERT INTO contents (scope, digest, size, base, step, data) VALUES (?, ?, ?, ?, ?, ?)",
            (scope, content.digest, content.size, base, step, encoded),
        )
        for position, part in enumerate(content.parts or ()):
            stored = self._find(scope, part)
            if stored is None:
                raise NotFoundError("the content is no longer kept")  # the workspace was purged meanwhile
            self._file.execute("INSERT INTO parts VALUES (?, ?, ?)", (cursor.lastrowid, position, stored.id))
        row = _ContentRow(cast("int", cursor.lastrowid), base, step, content.parts is None)
        self._rows[scope, content.digest] = row

    def open(self, scope: bytes | None, entry: Entry, *, remembered: bool) -> BinaryIO:
        """Open a content as it is stored, or one that is `remembered` and still stored. Raises `NotFoundError`."""
        with self._file.lock:
            digest = bytes.fromhex(entry.digest)
            stored = None if scope is None else self._find(scope, digest)
            if scope is None or stored is None:
                raise NotFoundError(f"the content of {entry.path!r} at {entry.number} is no longer kept", entry.path)
            if remembered and (data := self._recent.get(scope, digest)) is not None:
                return BytesIO(data)
            if stored.whole:
                chain = self._chain(stored.id)
        return verified(BytesIO(decode_chain(chain)) if stored.whole else self._joined(stored.id), entry)

    def _joined(self, content: int) -> BinaryIO:
        joined = cast("BinaryIO", SpooledTemporaryFile(max_size=LARGE))  # noqa: SIM115 - the caller closes it
        with self._file.lock:
            rows = self._file.all("SELECT part FROM parts WHERE content = ? ORDER BY position", content)
        for row in rows:
            joined.write(self._decoded(row["part"]))
        joined.seek(0)
        return joined

    def _decoded(self, content: int) -> bytes:
        with self._file.lock:
            chain = self._chain(content)
        return decode_chain(chain)

    def _chain(self, content: int) -> list[tuple[int, bytes]]:
        return [(row["size"], row["data"]) for row in self._file.all(_CHAIN, content)]

    def size(self, scope: bytes | None) -> int:
        """Return the bytes that the contents of a scope take."""
        row = self._file.one("SELECT coalesce(sum(length(data)), 0) bytes FROM contents WHERE scope = ?", scope)
        return int(row["bytes"])

    def forget(self, scope: bytes) -> None:
        """Keep no content of a scope in memory, and none in the file that has no entry."""
        self._recent.forget(scope)
        self.collect(scope)

    def collect(self, scope: bytes) -> None:
        """Delete the contents of a scope that no entry has. Encode those anew that were encoded against one of them."""
        while unused := {row["id"] for row in self._file.execute(_UNUSED, {"scope": scope})}:
            for row in self._file.all(
                "SELECT id, base FROM contents WHERE scope = ? AND base IS NOT NULL ORDER BY id", scope
            ):
                if row["base"] in unused and row["id"] not in unused:
                    values = encode(self._decoded(row["id"])), row["id"]
                    self._file.execute("UPDATE contents SET base = NULL, step = 0, data = ? WHERE id = ?", values)
            for content in unused:  # the chunks of a large one are unused then
                self._file.execute("DELETE FROM parts WHERE content = ?", (content,))
                self._file.execute("DELETE FROM contents WHERE id = ?", (content,))

    def _find(self, scope: bytes, digest: bytes) -> _ContentRow | None:
        stored = self._rows.get((scope, digest))
        if stored is None:
            row = self._file.one(
                "SELECT id, base, step, data IS NOT NULL FROM contents WHERE scope = ? AND digest = ?", scope, digest
            )
            if row is not None:
                stored = self._rows[scope, digest] = _ContentRow(*row)
        return stored
