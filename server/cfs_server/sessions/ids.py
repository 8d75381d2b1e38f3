"""New session ids, and the families that ids make (S1, S2)."""

import uuid


def new_id() -> str:
    """Make an id for a session that was created without a name (S2)."""
    return str(uuid.uuid4())


def parent_of(session_id: str) -> str | None:
    """Name the session that this one is a sub-session of; None for a root."""
    parent, slash, _ = session_id.rpartition("/")
    return parent if slash else None


def family_of(session_id: str) -> str:
    """Return the root of a session's family: itself, unless it is a sub-session."""
    return session_id.split("/", 1)[0]


def ancestors_of(session_id: str) -> list[str]:
    """Name all sessions above this one, the root first."""
    parts = session_id.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def is_within(session_id: str, root: str) -> bool:
    """Tell whether an id is `root` or a sub-session below it."""
    return session_id == root or session_id.startswith(root + "/")
