"""Names of LangGraph as names of files in a workspace, and back. Pure: no I/O.

Ids of threads, namespaces and keys are any text. A path may not contain wildcards, characters that look like a slash,
and so on (docs/filesystem.md). Such characters are percent-encoded, by the rule by which the server makes paths of
session ids. So the checkpoints of a thread are in the workspace of the session that has the thread's id.
"""

import re
from urllib.parse import quote, unquote

from cfs.contract.ids import check_id
from cfs.errors import InvalidIdentifier

_ESCAPED = re.compile(
    r"[%/*?\\\x00-\x1f\x7f-\x9f"
    "\u2044\u2215\u2571\u27cb\u29f8\uff0f"  # look like a slash
    "\u2216\u2572\u27cd\u29f5\u29f9\ufe68\uff3c"  # look like a backslash
    "\u2024\u2025\ufe52\uff0e]"  # look like dots
    r"|^\."
)


def escape(text: str) -> str:
    """Return a text as one component of a path; an empty one stays empty.

    Raises `InvalidIdentifier` for a text that is not valid Unicode.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidIdentifier(f"{text!r} is not valid Unicode") from None
    return _ESCAPED.sub(lambda match: _percent(match[0]), text)


def unescape(component: str) -> str:
    """Return the text of a component."""
    return unquote(component)


def workspace_of(name: str) -> str:
    """Return the path of the workspace of a thread or a store; sub-sessions are below the session they belong to."""
    if not name:
        raise InvalidIdentifier("the id of a thread, and the name of a store, cannot be empty")
    return f"/workspaces/{'/'.join(map(escape, name.split('/'))) if _is_id(name) else escape(name)}"


def _is_id(name: str) -> bool:
    try:
        check_id(name)
    except InvalidIdentifier:
        return False
    return True


def _percent(text: str) -> str:
    return f"%{ord(text):02X}" if ord(text) < 128 else quote(text, safe="")
