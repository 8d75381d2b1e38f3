"""Session ids: their logical paths, new ids, and the families that ids form (S1, S2)."""

import re
from collections.abc import Callable, Iterator
from itertools import count
from urllib.parse import quote, unquote_to_bytes

from cfs.contract.ids import check_id
from cfs.contract.random_names import random_names
from cfs.errors import InvalidIdentifier
from cfs_filesystem import InvalidPathError, Path, validate_path, validate_prefix

# An id may contain characters that a logical path may not: wildcards, a backslash, and characters that look like a
# slash or a dot. These and `%` are percent-encoded in the path, so that ids and paths correspond one to one.

SESSIONS = "/sessions/"
WORKSPACES = "/workspaces/"

_ESCAPED = re.compile(
    r"[%*?\\\x80-\x9f"  # C1 control characters
    "\u2044\u2215\u2571\u27cb\u29f8\uff0f"  # look like a slash
    "\u2216\u2572\u27cd\u29f5\u29f9\ufe68\uff3c"  # look like a backslash
    "\u2024\u2025\ufe52\uff0e]"  # look like dots
)


def path_of(session_id: str) -> Path:
    """Return the logical path of a session. Raises `InvalidIdentifier` for an invalid id."""
    path = SESSIONS + _ESCAPED.sub(_escape, check_id(session_id))
    try:
        return validate_path(path)
    except InvalidPathError:
        raise InvalidIdentifier(
            f"the session id {session_id[:80]!r} is too long: its path is {path[:80]!r}..., and that has 255 bytes a"
            " component at most"
        ) from None


def id_of(path: Path) -> str:
    """Return the session id of a valid logical path. Raises `InvalidPathError` if no session can have this path."""
    escaped = path.removeprefix(SESSIONS)
    try:
        session_id = unquote_to_bytes(escaped).decode() if "%" in escaped else escaped
        if path_of(session_id) == path:
            return session_id
    except (UnicodeDecodeError, InvalidIdentifier) as error:
        reason = getattr(error, "detail", "it is not UTF-8 behind its escapes")
        raise InvalidPathError(f"{path!r} names no session: {reason}", path) from None
    raise InvalidPathError(f"{path!r} names no session: write {path_of(session_id)!r} for it", path)


def _escape(match: "re.Match[str]") -> str:
    return quote(match[0], safe="")


def new_id(is_free: Callable[[str], bool]) -> str:
    """Return a new id for a session without a name (S2): one that can be read, remembered and typed."""
    return next(filter(is_free, random_names()))


def has_workspace(session_id: str) -> bool:
    """Return whether a session may have a workspace of its own: a root session whose name can be one of a folder."""
    try:
        validate_prefix(f"{WORKSPACES}{session_id}/")
    except InvalidPathError:
        return False
    return "/" not in session_id


def copy_ids(session_id: str) -> Iterator[str]:
    """Yield ids for copies of a session: with `-2`, `-3` and so on. A long id is shortened."""
    parent, slash, name = session_id.rpartition("/")
    for number in count(2):
        stem = name
        while not _is_id(copy := f"{parent}{slash}{stem}-{number}"):
            stem = stem[:-1]
        yield copy


def _is_id(session_id: str) -> bool:
    try:
        path_of(session_id)
    except InvalidIdentifier:
        return False
    return True


def parent_of(session_id: str) -> str | None:
    """Return the id of the parent session; None for a root."""
    parent, slash, _ = session_id.rpartition("/")
    return parent if slash else None


def family_of(session_id: str) -> str:
    """Return the root of a session's family: itself, unless it is a sub-session."""
    return session_id.split("/", 1)[0]


def ancestors_of(session_id: str) -> list[str]:
    """Return the ids of all parents, the root first."""
    parts = session_id.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def is_within(session_id: str, root: str) -> bool:
    """Return whether an id is `root` or a sub-session below it."""
    return session_id == root or session_id.startswith(root + "/")
