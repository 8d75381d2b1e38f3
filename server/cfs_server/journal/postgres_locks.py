"""The advisory locks with which one server owns a slot of the database."""

from contextlib import suppress

import psycopg
from psycopg import errors

from cfs_server.journal.postgres_connection import Connection

NAMESPACE = 0x434653
"""The first key of our advisory locks. The second one is the slot, or `_MIGRATION`."""


NO_LOCKS = (
    errors.FeatureNotSupported,
    errors.InsufficientPrivilege,
    errors.UndefinedFunction,
    errors.UndefinedTable,
)
"""What a database answers that has no advisory locks, or no list of locks."""


def try_lock(connection: Connection, slot: int) -> bool | None:
    """Take the lock of a slot for as long as the connection lives, if it is free. None if there are no such locks.

    Some databases accept the call and do nothing, so the list of locks decides.
    """
    try:
        row = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (NAMESPACE, slot)).fetchone()
        if row is not None and not row[0]:
            return False
        return True if holder_of(connection, slot) is not None else None
    except NO_LOCKS:
        return None


def holder_of(connection: Connection, slot: int) -> int | None:
    """Return the process of the database whose connection holds the lock of a slot."""
    row = connection.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = %s AND objid::bigint = %s"
        " AND objsubid = 2 AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        (NAMESPACE, slot),
    ).fetchone()
    return None if row is None else int(row[0])


def end_holder(connection: Connection, slot: int, pid: int | None = None) -> None:
    """End the connection that holds the lock of a slot, if it may be ended; with `pid` only that one.

    Never ends another connection: a process number that somebody noted may have been given to another one since.
    """
    with suppress(psycopg.Error):
        holder = holder_of(connection, slot)
        if holder is not None and pid in (None, holder):
            connection.execute("SELECT pg_terminate_backend(%s, 2000)", (holder,))
