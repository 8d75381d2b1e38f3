"""Connections to PostgreSQL, their errors in words, and text as it may hold it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cfs_server.journal.journal import StoreFailed, StoreFull, StoreUnavailable

_CONNECTION: Mapping[str, Any] = MappingProxyType(
    {
        "application_name": "cfs",
        "client_encoding": "UTF8",
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 8_000,
    }
)
"""Defaults of a connection, in seconds, and milliseconds for the last one: a server that is cut off is noticed soon."""


_SESSION = MappingProxyType(
    {"idle_session_timeout": "0", "idle_in_transaction_session_timeout": "15s", "lock_timeout": "5s"}
)
"""Settings of each connection that the server may know: an idle owner keeps its lock, a frozen one no transaction."""


_TEMPORARY_CLASSES = ("08", "40", "53", "57")
"""Lost connections, conflicts, missing resources, and interventions by an operator."""


_TEMPORARY = ("25006", "25P03", "55P03")
"""A server that is read-only (after a fail-over), a transaction that took too long, and a lock that did not come."""


_FULL = "53100"


Connection = psycopg.Connection[tuple[Any, ...]]


def place_of(url: str) -> str:
    """Return the place of a database for people, without the password. Raises `StoreFailed` for an invalid URL."""
    parameters = _parsed(url)
    host, port = parameters.get("host") or "the local socket", parameters.get("port")
    name = parameters.get("dbname") or parameters.get("user") or ""
    return f"PostgreSQL at {host}{f':{port}' if port else ''}/{name}"


def user_of(connection: Connection) -> str:
    """Return the name of the role that uses a connection."""
    return connection.info.user


def _parsed(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.Error:  # its text may contain the password
        raise StoreFailed(
            "the address of the database is not valid: it has the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None


def connect(url: str) -> Connection:
    """Connect to a database; each statement is a transaction of its own. Raises `StoreUnavailable`."""
    parameters = _parsed(url)
    try:
        connection = psycopg.connect(make_conninfo(**{**_CONNECTION, **parameters}), autocommit=True)
    except (psycopg.Error, UnicodeError) as error:
        raise StoreUnavailable(f"{place_of(url)} cannot be reached: {line_of(error)}") from None
    with suppress(psycopg.Error):  # another database may lack the view or the function
        connection.execute(
            "SELECT set_config(name, value, false) FROM pg_settings"
            " JOIN unnest(%s::text[], %s::text[]) AS wanted (parameter, value) ON name = parameter",
            (list(_SESSION), list(_SESSION.values())),
        )
    return connection


def line_of(error: Exception) -> str:
    """Return the message of an error as one line. Of several attempts, the last one counts."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]  # else it explains one
    text = " ".join(lines[-1].split()) if lines else type(error).__name__
    return text.rpartition(" failed: ")[2].removeprefix("FATAL: ").strip()


def failure_of(error: psycopg.Error, url: str) -> StoreFull | StoreFailed:
    """Return what an error of the database means for the store."""
    state, text = error.sqlstate, f"{url}: {line_of(error)}"
    if state == _FULL:
        return StoreFull(text)
    lost = state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if lost or (state is not None and (state[:2] in _TEMPORARY_CLASSES or state in _TEMPORARY)):
        return StoreUnavailable(text)
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreFailed(f"{text}: the user of the database lacks a right")
    return StoreFailed(f"{text} ({state or type(error).__name__})")


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Translate errors of the database. Raises `StoreFailed`."""
    try:
        yield
    except psycopg.Error as error:
        failure = failure_of(error, url)
        raise (failure if isinstance(failure, StoreFailed) else StoreFailed(str(failure))) from error


def escape(text: str) -> str:
    """Return a text without NUL, which PostgreSQL does not store."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def unescape(text: str) -> str:
    """Return the text that was escaped."""
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))
