"""The PostgreSQL database of the journal: its connections, its schema, and the checks before it is used.

Many replicas share a database. It contains a fixed number of *slots*. A slot is a complete store: records, heads, kept
documents, epochs and a common log. No table refers to another slot than its own.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import errors

from cfs_server.journal.journal import StoreFailed
from cfs_server.journal.postgres_connection import Connection, connect, line_of, place_of, translated, user_of
from cfs_server.journal.postgres_locks import NAMESPACE, NO_LOCKS

SCHEMA = 4
"""The version of the schema that this program writes."""
_ORDER = """
-- Numbers records and changes of files in one order, which needs no clock: what begins after the answer to another one
-- has a greater number.
CREATE SEQUENCE cfs.orders;
GRANT USAGE ON SEQUENCE cfs.orders TO PUBLIC;
ALTER TABLE cfs.records ADD COLUMN "order" bigint;
ALTER TABLE cfs.records ALTER COLUMN "order" SET DEFAULT nextval('cfs.orders');
ALTER TABLE cfs.version_changes ADD COLUMN "order" bigint;
ALTER TABLE cfs.version_changes ALTER COLUMN "order" SET DEFAULT nextval('cfs.orders');
-- Takes the locks of a change of one path, and reads what it needs to know once it has them.
CREATE FUNCTION cfs.begin_version(of_workspace bigint, of_path bigint, the_name bytea, the_key bytea) RETURNS TABLE (
    id bigint, scope bytea, last bigint, oldest bigint,
    path bytea, number bigint, at double precision, type text, mode integer, size bigint, digest bytea, stamp text,
    content bigint, base bigint, step integer, parts boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_lock_shared(of_workspace);
    PERFORM pg_advisory_lock(of_path);
    RETURN QUERY SELECT workspaces.id, workspaces.scope, workspaces.last, workspaces.oldest,
        entry.path, entry.number, entry.at, entry.type, entry.mode, entry.size, entry.digest, entry.stamp,
        contents.id, contents.base, contents.step, contents.data IS NULL
    FROM cfs.version_workspaces AS workspaces LEFT JOIN LATERAL (
        SELECT * FROM cfs.version_entries WHERE workspace = workspaces.id AND key = the_key ORDER BY number DESC LIMIT 1
    ) AS entry ON true LEFT JOIN cfs.version_contents AS contents
        ON contents.scope = workspaces.scope AND contents.digest = entry.digest
    WHERE workspaces.name = the_name;
END
$$;
"""
TABLES = (
    """
CREATE SCHEMA IF NOT EXISTS cfs;
CREATE TABLE cfs.meta (name text PRIMARY KEY, value text NOT NULL);
-- `epoch` grows with each claim and each new connection of the owner: what an earlier one still sends is refused.
-- `claim` is random and names the present claim. `pid` is the connection of the owner once it has the lock. `seq` and
-- `position` are the last ones that are stored.
CREATE TABLE cfs.slots (
    slot integer PRIMARY KEY,
    life text NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    owner text,
    claim text,
    pid integer,
    seq bigint NOT NULL DEFAULT 0,
    position bigint NOT NULL DEFAULT 0,
    pruned bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
CREATE TABLE cfs.replicas (
    id text PRIMARY KEY,
    url text NOT NULL,
    version text NOT NULL DEFAULT '',
    beat timestamptz NOT NULL DEFAULT now(),
    started timestamptz NOT NULL DEFAULT now(),
    leaving boolean NOT NULL DEFAULT false,
    usage text NOT NULL DEFAULT ''
);
-- A cursor names the epoch in which its event was numbered. `seq` and `position` are the last ones before it.
CREATE TABLE cfs.epochs (
    slot integer NOT NULL,
    epoch bigint NOT NULL,
    label text NOT NULL,
    seq bigint NOT NULL,
    position bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (slot, epoch)
);
CREATE INDEX epochs_by_label ON cfs.epochs (slot, label);
-- `head` includes the records up to `seq`. `deleted` is the record of the deletion, which stays for readers of events.
-- All other records of the session are removed.
CREATE TABLE cfs.sessions (
    slot integer NOT NULL,
    key text NOT NULL,
    seq bigint NOT NULL DEFAULT 0,
    head text,
    deleted bigint,
    PRIMARY KEY (slot, key)
);
CREATE TABLE cfs.records (
    slot integer NOT NULL,
    seq bigint NOT NULL,
    session text NOT NULL,
    at double precision NOT NULL,
    kind text NOT NULL,
    version integer NOT NULL,
    author text NOT NULL,
    body text NOT NULL,
    events text NOT NULL,
    number bigint NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (slot, seq)
);
CREATE INDEX records_of_session ON cfs.records (slot, session, seq);
-- `digest` is the SHA-256 of `name`, which may be too long for an index. Names and values are escaped: see `escape`.
CREATE TABLE cfs.kept (
    slot integer NOT NULL,
    space text NOT NULL,
    digest text NOT NULL,
    name text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (slot, space, digest)
);
"""
    + (
        _WORDS := """
-- The words of each message. `indexed` is the last record whose messages are there, divided as `format` says.
CREATE TABLE cfs.words (
    slot integer NOT NULL,
    seq bigint NOT NULL,
    part integer NOT NULL,
    words tsvector NOT NULL,
    PRIMARY KEY (slot, seq, part)
);
CREATE INDEX words_of_messages ON cfs.words USING gin (words);
CREATE TABLE cfs.indexes (slot integer PRIMARY KEY, format text NOT NULL, indexed bigint NOT NULL);
"""
    )
    + (
        _VERSIONS := """
-- The past of workspaces, of all slots. `scope` is random: what is in one scope is shared by a workspace and its forks.
-- Names and paths are bytes.
CREATE TABLE cfs.version_workspaces (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    scope bytea NOT NULL,
    last bigint NOT NULL DEFAULT 0,
    oldest bigint NOT NULL DEFAULT 0
);
CREATE INDEX version_workspaces_by_scope ON cfs.version_workspaces (scope);
CREATE TABLE cfs.version_changes (
    workspace bigint NOT NULL,
    number bigint NOT NULL,
    at double precision NOT NULL,
    principal text NOT NULL,
    agent text NOT NULL,
    call text NOT NULL,
    kind text NOT NULL,
    PRIMARY KEY (workspace, number)
);
-- What a change left at a path; a path without a type was removed. `key` is the path, with a digest in place of the end
-- of one that is too long for an index.
CREATE TABLE cfs.version_entries (
    workspace bigint NOT NULL,
    key bytea NOT NULL,
    number bigint NOT NULL,
    path bytea NOT NULL,
    at double precision NOT NULL,
    type text,
    mode integer NOT NULL,
    size bigint NOT NULL,
    digest bytea,
    stamp text NOT NULL,
    PRIMARY KEY (workspace, key, number)
);
CREATE INDEX version_entries_by_number ON cfs.version_entries (workspace, number);
CREATE INDEX version_entries_by_digest ON cfs.version_entries (workspace, digest);
-- `base` is the content that is the dictionary of this one. A content without data consists of parts.
CREATE TABLE cfs.version_contents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope bytea NOT NULL,
    digest bytea NOT NULL,
    size bigint NOT NULL,
    base bigint,
    step integer NOT NULL,
    data bytea,
    UNIQUE (scope, digest)
);
ALTER TABLE cfs.version_contents ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX version_contents_by_base ON cfs.version_contents (base) WHERE base IS NOT NULL;
CREATE TABLE cfs.version_parts (
    content bigint NOT NULL,
    position integer NOT NULL,
    part bigint NOT NULL,
    PRIMARY KEY (content, position)
);
CREATE INDEX version_parts_by_part ON cfs.version_parts (part);
"""
    )
    + _ORDER
)
MIGRATIONS: Mapping[int, str] = MappingProxyType({2: _WORDS, 3: _VERSIONS, 4: _ORDER})
"""The statements that bring a database to a version of the schema from the version before it."""
_MIGRATION = -1
_ATTEMPTS = 5
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")

logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings repeat what the journal reports


@dataclass(frozen=True, slots=True)
class PreparedDatabase:
    """A database that can be used. `slots` is the number of its slots, which was fixed when it was created."""

    slots: int
    warnings: tuple[str, ...] = ()
    """What does not prevent a start, but weakens what an answer promises. One sentence each."""


def prepare(url: str, slots: int = 1) -> PreparedDatabase:
    """Check a database, and create its tables or migrate them. Several replicas may do so at once.

    `slots` counts only for a database without tables. Raises `StoreFailed` with one line for the operator.
    """
    with closing(connect(url)) as connection, translated(place_of(url)):
        _require_primary(connection, place_of(url))
        _require_sessions(connection, url)
        count = _create(connection, url, slots)
        _require_rights(connection, url)
        return PreparedDatabase(count, tuple(_warnings(connection)))


def _require_primary(connection: Connection, database: str) -> None:
    """Raise `StoreFailed` unless the database can be written and stores all characters."""
    encoding = _value(connection, "SHOW server_encoding")
    if encoding not in ("UTF8", "UTF-8"):
        raise StoreFailed(f"{database} has the encoding {encoding}: CFS needs a database with ENCODING 'UTF8'")
    if _value(connection, "SHOW transaction_read_only") == "on":
        raise StoreFailed(f"{database} is read-only: name the primary, not a standby")


def _require_sessions(connection: Connection, url: str) -> None:
    """Raise `StoreFailed` behind a pooler that lends a connection for a transaction only.

    It may give the server's process that has just served one connection to another one.
    """
    ask = "SELECT pg_backend_pid()"
    process = _value(connection, ask)
    with closing(connect(url)) as other:
        other.execute("BEGIN")
        shared = _value(other, ask) == process
        if not shared:  # else the pooler may have no further process for this connection
            shared = any(_value(connection, ask) != process for _ in range(5))
        other.execute("ROLLBACK")
    if shared:
        raise StoreFailed(
            f"{place_of(url)} is behind a pooler that shares connections between transactions, where locks do not"
            " hold: connect directly, or set its pool_mode to session"
        )


def _require_rights(connection: Connection, url: str) -> None:
    """Raise `StoreFailed` that names the rights which the user lacks."""
    try:
        missing = connection.execute(
            "SELECT name, string_agg(privilege, ', ') FROM unnest(%s::text[]) AS name"
            " CROSS JOIN unnest(%s::text[]) AS privilege WHERE NOT has_table_privilege('cfs.' || name, privilege)"
            " GROUP BY name ORDER BY name",
            (_tables(), list(_RIGHTS)),
        ).fetchall()
    except errors.InsufficientPrivilege:
        missing = [("", "USAGE on the schema cfs")]
    if missing:
        lacks = "; ".join(f"{rights} on cfs.{name}" if name else rights for name, rights in missing)
        raise StoreFailed(f"{place_of(url)}: the user {user_of(connection)!r} lacks the rights {lacks}")


def _tables() -> list[str]:
    return [line.split(".")[1].split()[0] for line in TABLES.splitlines() if line.startswith("CREATE TABLE")]


def _warnings(connection: Connection) -> Iterator[str]:
    """Yield what weakens the promise that a stored message survives a failure of the database's machine."""
    commit = _setting(connection, "synchronous_commit")
    if commit in ("off", "local"):
        yield (
            f"synchronous_commit is {commit}: a failure of the database can lose messages that were acknowledged;"
            " set it to on"
        )
    for name in ("fsync", "full_page_writes"):
        if _setting(connection, name) == "off":
            yield f"{name} is off: a failure of the database's machine can lose or damage everything; set it to on"
    with suppress(psycopg.Error):
        standbys = int(_value(connection, "SELECT count(*) FROM pg_stat_replication"))
        if standbys and not _setting(connection, "synchronous_standby_names"):
            yield (
                "the standbys of the database are asynchronous: a fail-over can lose messages that were acknowledged;"
                " set synchronous_standby_names"
            )


def _setting(connection: Connection, name: str) -> str | None:
    value = _value(connection, "SELECT current_setting(%s, true)", name)
    return None if value is None else str(value)


def _value(connection: Connection, query: str, *values: object) -> Any:
    row = connection.execute(query, values or None).fetchone()
    return None if row is None else row[0]


def require_schema(version: str | None, url: str) -> int:
    """Return the version of a schema, which `meta` contains. Raises `StoreFailed` if it is newer than this program."""
    if version is None:
        raise StoreFailed(f"{url} has a schema cfs of another program")
    if int(version) > SCHEMA:
        raise StoreFailed(f"{url} has been written by a newer CFS: schema {version}, and this one knows {SCHEMA}")
    return int(version)


def _create(connection: Connection, url: str, slots: int) -> int:
    """Create or migrate the tables, and return the number of slots."""
    for attempt in range(_ATTEMPTS):
        try:
            with connection.transaction():
                return _create_within(connection, url, slots)
        except (errors.DuplicateSchema, errors.DuplicateTable, errors.UniqueViolation, errors.SerializationFailure):
            if attempt == _ATTEMPTS - 1:  # another replica was quicker, where no lock prevents that
                raise
    raise AssertionError


def _create_within(connection: Connection, url: str, slots: int) -> int:
    with suppress(*NO_LOCKS), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", (NAMESPACE, _MIGRATION))
    try:
        if _value(connection, "SELECT to_regclass('cfs.meta')::text") is None:
            connection.execute(TABLES)
            stored = [("schema", f"{SCHEMA}"), ("slots", f"{slots}")]
            cursor = connection.cursor()
            cursor.executemany("INSERT INTO cfs.meta VALUES (%s, %s)", stored)
            lives = [(slot, secrets.token_hex(4)) for slot in range(slots)]
            cursor.executemany("INSERT INTO cfs.slots (slot, life) VALUES (%s, %s)", lives)
            return slots
        meta: dict[str, str] = dict(connection.execute("SELECT name, value FROM cfs.meta").fetchall())
        current = require_schema(meta.get("schema"), place_of(url))
        for version in range(current + 1, SCHEMA + 1):
            connection.execute(MIGRATIONS[version])
            connection.execute("UPDATE cfs.meta SET value = %s WHERE name = 'schema'", (f"{version}",))
        return int(meta["slots"])
    except errors.InsufficientPrivilege as error:
        name, user = connection.info.dbname, user_of(connection)
        raise StoreFailed(
            f"{place_of(url)}: {line_of(error)}: the user {user!r} needs CREATE on the database {name!r} for the first"
            " start, and USAGE on the schema cfs for each one"
        ) from error
