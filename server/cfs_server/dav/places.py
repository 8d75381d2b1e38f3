"""What the paths of the two mounts of sessions stand for; behind this module nobody splits paths (W3)."""

from contextlib import suppress
from dataclasses import dataclass

from cfs.errors import InvalidIdentifier
from cfs.ids import check_id, id_below, is_scratch


@dataclass(frozen=True, slots=True)
class Top:
    """The mount itself."""


@dataclass(frozen=True, slots=True)
class Family:
    """The collection of everything below a root session."""

    root: str


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """The transcript of a session; the id has not been checked."""

    id: str


@dataclass(frozen=True, slots=True)
class ScratchPlace:
    """A file that a program makes for itself."""

    path: str


Place = Top | Family | SessionPlace | ScratchPlace


def in_sessions(path: str) -> Place | None:
    """Read a path of `/dav/sessions`: every root session by its id; None where nothing can be."""
    match path.strip("/").split("/"):
        case [""]:
            return Top()
        case [name]:
            return ScratchPlace(path) if is_scratch(name) else SessionPlace(name)
    return None


def in_sub_sessions(path: str) -> Place | None:
    """Read a path of `/dav/sub_sessions`: a collection for each root, flat; None where nothing can be.

    `4913` or `a.swp` can be a sub-session there, and is one: only what cannot is a program's own file.
    """
    match path.strip("/").split("/"):
        case [""]:
            return Top()
        case [name]:
            return ScratchPlace(path) if is_scratch(name) else Family(name)
        case [root, name]:
            session_id = id_below(root, name)
            return ScratchPlace(path) if is_scratch(name) and not _is_legal(session_id) else SessionPlace(session_id)
    return None


def _is_legal(session_id: str) -> bool:
    with suppress(InvalidIdentifier):
        return bool(check_id(session_id))
    return False
