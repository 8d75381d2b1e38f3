"""The contents of versions in PostgreSQL: each is there once in its scope, whole, against another one, or in parts.

What stores or deletes has the scope locked.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, NamedTuple, TypeAlias, cast

from cfs_filesystem import NotFoundError
from cfs_filesystem.versions import Content, codec
from cfs_filesystem.versions.codec import LARGE, STRIDE, Basis, decode_chain, encode
from cfs_server.versions.connections import VersionsConnection

Reading: TypeAlias = Callable[[], AbstractContextManager[VersionsConnection]]
"""Lends a connection whose statements see one state of the database."""
_CHAIN = """
WITH RECURSIVE chain (depth, base, size, data) AS (
    SELECT 0, base, size, data FROM cfs.version_contents WHERE id = %s
    UNION ALL SELECT depth + 1, contents.base, contents.size, contents.data
    FROM chain JOIN cfs.version_contents AS contents ON contents.id = chain.base
) SELECT size, data FROM chain ORDER BY depth DESC
"""
_UNUSED = """
SELECT id FROM cfs.version_contents AS contents WHERE scope = %s
AND NOT EXISTS (
    SELECT 1 FROM cfs.version_workspaces AS workspaces JOIN cfs.version_entries AS entries ON workspace = workspaces.id
    WHERE workspaces.scope = contents.scope AND entries.digest = contents.digest
) AND NOT EXISTS (SELECT 1 FROM cfs.version_parts WHERE part = contents.id)
"""


class StoredContent(NamedTuple):
    """The row of a content, which has either data or parts."""

    id: int
    base: int | None
    step: int
    has_parts: bool


def basis_after(reading: Reading, before: StoredContent, data: bytes) -> Basis:
    """Choose what the content that follows `before`, with these bytes, is encoded against. Few need to read for it."""
    if before.has_parts:
        return Basis()
    return codec.basis_after(before.id, before.step, data, partial(_key_of, reading, before))


def _key_of(reading: Reading, stored: StoredContent) -> tuple[int, bytes] | None:
    """Return the id and the bytes of the key that a content goes back to; None if it was removed meanwhile."""
    key, base, step = stored.id, stored.base, stored.step
    with reading() as database:
        while base is not None and step % STRIDE:
            rows = database.execute("SELECT id, base, step FROM cfs.version_contents WHERE id = %s", base)
            if not rows:
                return None
            ((key, base, step),) = rows
        return key, _decoded(database, key)


def find(database: VersionsConnection, scope: bytes, digest: bytes) -> StoredContent | None:
    """Return the row of a content, or None."""
    rows = database.execute(
        "SELECT id, base, step, data IS NULL FROM cfs.version_contents WHERE scope = %b AND digest = %b", scope, digest
    )
    return StoredContent(*rows[0]) if rows else None


def store(database: VersionsConnection, scope: bytes, content: Content) -> None:
    """Store a content unless it is there. Its base may have been removed since it was prepared.

    Raises `NotFoundError` if its parts were removed, or it has no bytes and is not there.
    """
    if find(database, scope, content.digest) is not None:
        return
    encoded, base, step = content.encoded, content.base, content.step
    gone = base is not None and not database.execute("SELECT 1 FROM cfs.version_contents WHERE id = %s", base)
    if content.parts is None and (encoded is None or gone):
        if content.raw is None:
            raise NotFoundError("the content is no longer kept")
        encoded, base, step = encode(content.raw), None, 0
    ((new_id,),) = database.execute(
        "INSERT INTO cfs.version_contents (scope, digest, size, base, step, data)"
        " VALUES (%b, %b, %s, %s, %s, %b) RETURNING id",
        *(scope, content.digest, content.size, base, step, encoded),
    )
    if content.parts is None:
        return
    rows = []
    for position, part in enumerate(content.parts):
        stored = find(database, scope, part)
        if stored is None:
            raise NotFoundError("the content is no longer kept")  # the workspace was purged meanwhile
        rows.append((new_id, position, stored.id))
    database.insert("INSERT INTO cfs.version_parts VALUES (%s, %s, %s)", rows)


def load(database: VersionsConnection, stored: StoredContent) -> BinaryIO:
    """Read a content."""
    return _joined(database, stored.id) if stored.has_parts else BytesIO(_decoded(database, stored.id))


def _decoded(database: VersionsConnection, content: int) -> bytes:
    return decode_chain((size, data) for size, data in database.execute(_CHAIN, content))


def _joined(database: VersionsConnection, content: int) -> BinaryIO:
    joined = cast("BinaryIO", SpooledTemporaryFile(max_size=LARGE))  # noqa: SIM115 - the caller closes it
    for (part,) in database.execute("SELECT part FROM cfs.version_parts WHERE content = %s ORDER BY position", content):
        joined.write(_decoded(database, part))
    joined.seek(0)
    return joined


def size_of(database: VersionsConnection, scope: bytes) -> int:
    """Return the bytes that the contents of a scope take."""
    ((size,),) = database.execute(
        "SELECT coalesce(sum(length(data)), 0)::bigint FROM cfs.version_contents WHERE scope = %b", scope
    )
    return int(size)


def collect(database: VersionsConnection, scope: bytes) -> None:
    """Delete the contents of a scope that no entry has. Encode those anew that were encoded against one of them."""
    while unused := [content for (content,) in database.execute(_UNUSED, scope)]:
        for (content,) in database.execute(
            "SELECT id FROM cfs.version_contents WHERE base = ANY(%s::bigint[]) AND id <> ALL(%s::bigint[])",
            unused,
            unused,
        ):
            database.execute(
                "UPDATE cfs.version_contents SET base = NULL, step = 0, data = %b WHERE id = %s",
                encode(_decoded(database, content)),
                content,
            )
        database.execute("DELETE FROM cfs.version_parts WHERE content = ANY(%s::bigint[])", unused)
        database.execute("DELETE FROM cfs.version_contents WHERE id = ANY(%s::bigint[])", unused)
