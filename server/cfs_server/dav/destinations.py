"""The `Destination` of COPY and MOVE, checked as strictly as the path of the request (RFC 4918, 10.3)."""

from urllib.parse import quote, urlsplit

from starlette.types import Scope

from cfs.errors import InvalidRequest
from cfs_server.guard import plain_path

_CUT = "?;"


def with_plain_destination(scope: Scope) -> Scope:
    """Return the request with its destination in one spelling; raises `InvalidRequest` for what names none."""
    headers = [(name, _plain(value) if name == b"destination" else value) for name, value in scope["headers"]]
    return dict(scope, headers=headers)


def require_plain_parts(path: str) -> None:
    """Raise `InvalidRequest` for empty, `.` and `..` components, which programs on the way may read in many ways."""
    parts = path.removeprefix("/").removesuffix("/").split("/")
    if path != "/" and any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest("the path must not have empty components, '.' or '..'")


def _plain(value: bytes) -> bytes:
    try:
        url = urlsplit(value.decode())
    except (UnicodeDecodeError, ValueError):
        raise InvalidRequest("the Destination is no URL") from None
    if url.query or url.fragment:
        raise InvalidRequest("a Destination has no query and no fragment; write %3F and %23 for the characters")
    path = plain_path(url.path.encode())
    require_plain_parts(path)
    if any(sign in path for sign in _CUT):
        raise InvalidRequest("a name with '?' or ';' can be no Destination; rename by POST /v1/sessions/{id}/rename")
    authority = f"{url.scheme}://{url.netloc}" if url.netloc else ""
    return (authority + quote(path)).encode()
