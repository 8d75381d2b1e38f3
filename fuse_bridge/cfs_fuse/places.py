"""What a path of the mount stands for; behind this module nobody splits paths (F5)."""

import errno
import os
from dataclasses import dataclass
from typing import Literal

from cfs.ids import id_below, is_scratch

ControlKind = Literal["live", "status", "events"]

CONTROL_KINDS: tuple[ControlKind, ...] = ("live", "status", "events")
SUB_SESSIONS = ".sub_sessions"
NAME_MAX = 255
"""Bytes of a name."""


@dataclass(frozen=True, slots=True)
class Root:
    """The directory of all sessions."""


@dataclass(frozen=True, slots=True)
class ControlDirectory:
    """One of the hidden directories whose files say something about each session."""

    kind: ControlKind


@dataclass(frozen=True, slots=True)
class Families:
    """The hidden directory with a directory for each session that has sub-sessions."""


@dataclass(frozen=True, slots=True)
class Family:
    """The directory of everything below one session."""

    root: str


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """The transcript of a session."""

    id: str


@dataclass(frozen=True, slots=True)
class ControlPlace:
    """A control file of a session."""

    kind: ControlKind
    id: str


@dataclass(frozen=True, slots=True)
class ScratchPlace:
    """A file that an editor or a desktop makes for itself."""

    name: str


Directory = Root | ControlDirectory | Families | Family
File = SessionPlace | ControlPlace | ScratchPlace
Place = Directory | File


def place_of(path: str) -> Place:
    """Read a path as the kernel gives it.

    Raises `OSError`: ENOENT, EILSEQ for a name that is not UTF-8, ENAMETOOLONG for one the kernel lets pass.
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "a name must be UTF-8") from None
    if len(encoded) > NAME_MAX and max(map(len, encoded.split(b"/"))) > NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    match path.strip("/").split("/"):
        case [""]:
            return Root()
        case [name]:
            return _at_root(name)
        case [directory, name] if directory == SUB_SESSIONS:
            return Family(name)
        case [directory, root, name] if directory == SUB_SESSIONS:
            return SessionPlace(id_below(root, name))
        case [directory, name]:
            for kind in CONTROL_KINDS:
                if directory == f".{kind}":
                    return ControlPlace(kind, name)
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _at_root(name: str) -> Place:
    if name == SUB_SESSIONS:
        return Families()
    for kind in CONTROL_KINDS:
        if name == f".{kind}":
            return ControlDirectory(kind)
    return ScratchPlace(name) if is_scratch(name) else SessionPlace(name)
