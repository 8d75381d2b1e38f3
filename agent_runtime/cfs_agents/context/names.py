"""Names of stored sessions, and of the files of their items. No I/O."""

import hashlib
import re
import secrets
from collections.abc import Collection
from datetime import datetime

from cfs.errors import InvalidIdentifier

GENERATED_SESSION = re.compile(r"session_\d{8}_\d{6}_[a-z0-9]{6}")

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)")
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_session_id(now: datetime) -> str:
    """Return a new id for a session: its time and six random characters (O1)."""
    return f"session_{now:%Y%m%d_%H%M%S}_{''.join(secrets.choice(_LETTERS) for _ in range(6))}"


def valid_session_id(session_id: str) -> str:
    """Return an id that can be the name of a folder, or raise `InvalidIdentifier`."""
    if not _SESSION.fullmatch(session_id) or _DEVICES.fullmatch(session_id):
        raise InvalidIdentifier(f"{session_id!r} cannot be the name of a context's folder: letters, digits, . _ - only")
    return session_id


def safe_name(raw: str, otherwise: str) -> str:
    """Return a file name, without an ending, for an id; `otherwise` replaces an empty id.

    A plain id stays as it is. Any other id (long, with dots, slashes, NUL, letters of other scripts, or the name of a
    device) becomes its plain characters and a hash of the whole. The same id always has the same name.
    """
    if not raw:
        raw = otherwise
    if _PLAIN.fullmatch(raw) and not _DEVICES.fullmatch(raw):
        return raw
    plain = _OTHERS.sub("_", raw[:200]).strip("_-")[:40]
    return f"{plain or 'id'}-{_digest(raw)}"


def distinct_name(name: str, item_id: str, taken: Collection[str]) -> str:
    """Return a name that differs from all of `taken` (in lower case), also on disks that ignore case."""
    candidate, count = name, 1
    while candidate.lower() in taken:
        candidate = f"{name}-{_digest(f'{item_id} {count}')}"
        count += 1
    return candidate


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
