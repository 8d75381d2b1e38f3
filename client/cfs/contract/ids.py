"""The names of sessions: validates ids, and tells them from the names of temporary files (S1).

An id is a file name, or a path of sub-sessions below one. Clients validate an id before they use it in a URL or a path,
so that it cannot reach another resource. The server validates it again.
"""

import re

from cfs.contract.errors import InvalidIdentifier
from cfs.contract.route_words import ROUTE_WORDS

MAX_SESSION_ID_BYTES = 255
"""Longest component of a session id, as for a file name (S1)."""

VERSIONS = ".versions"
"""The folder of the past on the mount and on WebDAV."""

_COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_DEPTH = 16
_SCRATCH = re.compile(
    r"\..*"  # dot files: swap files, locks, `rsync` and `gio` temporaries, .DS_Store, ._*, .Trash
    r"|.*~"  # backups
    r"|.*\.sw[a-z]"  # vim
    r"|4913"  # vim tests with it whether it may create a file
    r"|#.*#"  # emacs
    r"|sed[A-Za-z0-9]{6}"  # sed -i
    r"|.*\.partial"  # rclone, before it renames the file
    r"|Thumbs\.db|desktop\.ini",
    re.DOTALL,
)


def check_id(session_id: str) -> str:
    """Return the id if it is legal; raise `InvalidIdentifier` with the reason if not (S1)."""
    root, *components = session_id.split("/")
    _check_root(root)
    if len(components) >= _MAX_DEPTH:
        raise InvalidIdentifier(f"sub-sessions may be nested {_MAX_DEPTH} deep at most")
    for component in components:
        if not _COMPONENT.fullmatch(component):
            raise InvalidIdentifier(
                f"the sub-session name {component[:80]!r} must be 1 to 64 letters, digits, '_' or '-' (no trailing '/')"
            )
        if component in ROUTE_WORDS:
            raise InvalidIdentifier(f"a sub-session cannot be called {component!r}: it is a part of the API's routes")
    return session_id


def name_below(root: str, session_id: str) -> str:
    """Return a sub-session's flat name: `coder.tester` for `main/coder/tester` in the directory of `main` (F5, W3)."""
    return session_id.removeprefix(root + "/").replace("/", ".")


def id_below(root: str, name: str) -> str:
    """Return the id for such a name, without validating it."""
    return f"{root}/{name.replace('.', '/')}"


def file_name_of(session_id: str) -> str:
    """Return a session's id as one file name: `main%2Fcoder` for `main/coder`, and `%25` for a percent sign."""
    return session_id.replace("%", "%25").replace("/", "%2F")


def id_of_file_name(name: str) -> str | None:
    """Return the id for such a name, without validating it; None if no id has this name."""
    session_id = name.replace("%2F", "/").replace("%25", "%")
    return session_id if file_name_of(session_id) == name else None


def _check_root(root: str) -> None:
    try:
        size = len(root.encode())
    except UnicodeEncodeError:
        raise InvalidIdentifier("a session id must be valid UTF-8") from None
    if not 1 <= size <= MAX_SESSION_ID_BYTES:
        raise InvalidIdentifier(f"a session id has 1 to {MAX_SESSION_ID_BYTES} bytes; this one has {size}")
    if root.startswith("."):
        raise InvalidIdentifier("a session id must not begin with '.': such names are control files")
    if _CONTROL.search(root):
        raise InvalidIdentifier("a session id must not contain control characters")


def is_scratch(name: str) -> bool:
    """Return whether this is the name of a program's temporary file, not of a session.

    Editors, desktops and copying programs create such files next to the one that they work on. Mounts store them as
    ordinary files, so that they do not become sessions (F4, W1).
    """
    return _SCRATCH.fullmatch(name) is not None
