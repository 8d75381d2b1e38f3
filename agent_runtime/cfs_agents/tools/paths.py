"""From the paths that a model writes to logical paths (A2), and from names on disk to text. Pure: no I/O.

The agent sees `/`, which is its own directory; what is relative is relative to `/workspace`. Nothing is repaired: what
the gate takes for no path (`..`, `//`, `*`, control characters) is refused with its reason, wherever it would lead.

A name on disk is bytes. Inside the runtime it is a string as `os.fsdecode` makes it; `escaped_name` makes text of it.
"""

import re

from cfs_agents.tools.errors import ToolError
from cfs_filesystem import OPERATIONS, Grant, InvalidPathError, Operation, Path, validate_path

WORKSPACE = "/workspace"
STORAGE = "/storage"
GUIDELINE = "/guideline.md"
CONTEXT_WINDOW = "/context_window_main.md"

_UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\\\\"  # control characters, and the backslash that escapes them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, marks that turn the direction of writing
    "\ud800-\udfff]"  # bytes that are not UTF-8
)
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")

_LOOK: frozenset[Operation] = OPERATIONS - {"write", "delete"}


def agent_grants() -> list[Grant]:
    """Say what an agent may do in its directory: all in its two folders; its rules and its memory it may read."""
    return [
        Grant(prefix=WORKSPACE, ops=OPERATIONS),
        Grant(prefix=STORAGE, ops=OPERATIONS),
        Grant(prefix=GUIDELINE, ops=_LOOK),
        Grant(prefix=CONTEXT_WINDOW, ops=_LOOK),
    ]


def file_path(path: str) -> Path:
    """Return the logical path of a file; raises `ToolError` with the reason for what is no path."""
    if not path:
        raise ToolError("the path is empty")
    return _checked(path if path.startswith("/") else f"{WORKSPACE}/{_bare(path)}", path)


def directory_path(path: str) -> Path:
    """Return the logical path of a directory; `.`, `/` and a slash at the end are allowed here."""
    if path in ("", "."):
        return WORKSPACE
    if path == "/":
        return path
    inner = path.removesuffix("/")
    if inner == ".":
        return WORKSPACE
    return _checked(inner if path.startswith("/") else f"{WORKSPACE}/{_bare(inner)}", path)


def _bare(path: str) -> str:
    """Drop each `./` at the beginning."""
    while path.startswith("./"):
        path = path[2:]
    return path


def _checked(logical: str, given: str) -> Path:
    try:
        return validate_path(logical)
    except InvalidPathError as error:
        hint = ": '..' is never followed, write the path from /workspace on" if ".." in given.split("/") else ""
        raise ToolError(f"{error.detail}{hint}") from None


def escaped_name(name: str) -> str:
    """Return a file name or path as valid text on one line: bytes that cannot be shown as `\\xff`, as bash's `$'...'`.

    Different names stay different: a backslash is escaped, too. `unescaped_name` is the way back.
    """
    return _UNSHOWABLE.sub(_escaped, name)


def unescaped_name(text: str) -> str:
    """Return the file name, as `os.fsdecode` makes it, that `escaped_name` wrote like this."""
    data = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), text.encode("utf-8", "surrogateescape"))
    return data.decode("utf-8", "surrogateescape")


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
