"""Session ids, as every client may write them: a file name, or a path of sub-sessions below one (S1)."""

import re

from cfs.errors import InvalidIdentifier
from cfs.wire import MAX_SESSION_ID_BYTES

_COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROUTE_WORDS = frozenset(
    {
        "messages",
        "settings",
        "transcript",
        "cancel",
        "fork",
        "rename",
        "wait",
        "sub_sessions",
        "events",
        "claim",
        "turns",
    }
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_id(session_id: str) -> str:
    """Return the id if it can name a session on every face; raise `InvalidIdentifier` if not.

    It is checked here, before it becomes a part of a URL or a path, so that no id can reach another resource than
    its own; the server checks the same again.
    """
    root, *components = session_id.split("/")
    try:
        size = len(root.encode())
    except UnicodeEncodeError:
        raise InvalidIdentifier("a session id must be valid UTF-8") from None
    if not 1 <= size <= MAX_SESSION_ID_BYTES:
        raise InvalidIdentifier(f"a session id has 1 to {MAX_SESSION_ID_BYTES} bytes; this one has {size}")
    if root.startswith(".") or _CONTROL.search(root):
        raise InvalidIdentifier(f"{root!r} is no session id: it begins with '.' or holds a control character")
    for component in components:
        if not _COMPONENT.fullmatch(component) or component in _ROUTE_WORDS:
            raise InvalidIdentifier(
                f"the sub-session name {component[:80]!r} must be 1 to 64 letters, digits, '_' or '-',"
                " and no word that routes end in"
            )
    return session_id
