"""The addresses of resources: logical paths of the server as URIs. Pure: no I/O.

A transcript is `cfs:///sessions/NAME`, a file `cfs:///workspaces/NAME/PATH`, percent-encoded (RFC 3986).
"""

from urllib.parse import quote, unquote, urlsplit

from cfs.contract.ids import check_id
from cfs.errors import InvalidPath

SCHEME = "cfs"
SESSIONS = f"{SCHEME}:///sessions/"
WORKSPACES = f"{SCHEME}:///workspaces/"
SESSION_TEMPLATE = f"{SESSIONS}{{+session}}"
FILE_TEMPLATE = f"{WORKSPACES}{{+path}}"


def uri_of_session(session: str) -> str:
    """Return the URI of a session's transcript."""
    return SESSIONS + quote(session)


def uri_of_file(path: str) -> str:
    """Return the URI of a logical path such as `/workspaces/main/plan.md`."""
    return f"{SCHEME}://{quote(path)}"


def session_in(uri: str) -> str | None:
    """Return the session of a transcript's URI; None if it is the URI of a file. Raises `InvalidPath` for others."""
    path = path_in(uri)
    return check_id(path.removeprefix("/sessions/")) if path.startswith("/sessions/") else None


def path_in(uri: str) -> str:
    """Return the decoded path of a URI. Raises `InvalidPath` if it is none of ours."""
    try:
        parts = urlsplit(uri)
        path = unquote(parts.path, errors="strict")
    except ValueError:
        raise InvalidPath(f"{uri[:200]!r} is no URI") from None
    ours = path.startswith(("/sessions/", "/workspaces/"))
    if parts.scheme != SCHEME or parts.netloc or parts.query or parts.fragment or not ours:
        raise InvalidPath(f"{uri[:200]!r} is not the URI of a resource: use {SESSION_TEMPLATE} or {FILE_TEMPLATE}")
    return path
