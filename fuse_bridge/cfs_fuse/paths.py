"""Parses paths of the mount and builds file attributes (F5). No other module splits paths."""

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import Any, Literal

from cfs.contract.ids import VERSIONS, id_below, id_of_file_name, is_scratch

ControlKind = Literal["live", "status", "events"]

CONTROL_KINDS: tuple[ControlKind, ...] = ("live", "status", "events")
SUB_SESSIONS = ".sub_sessions"
SEARCH = ".search"
QUESTIONS = ".questions"
NAME_MAX = 255
"""Maximum length of a name in bytes."""


@dataclass(frozen=True, slots=True)
class Root:
    """The directory of all sessions."""


@dataclass(frozen=True, slots=True)
class ControlDirectory:
    """A hidden directory with one control file for each session."""

    kind: ControlKind


@dataclass(frozen=True, slots=True)
class Families:
    """The hidden directory with a directory for each session that has sub-sessions."""


@dataclass(frozen=True, slots=True)
class Family:
    """The directory of all sub-sessions of one session."""

    root: str


@dataclass(frozen=True, slots=True)
class Searches:
    """The hidden directory of searches. It lists none: each name in it is a file."""


@dataclass(frozen=True, slots=True)
class SearchPath:
    """The results of a search: its name is the words."""

    words: str


@dataclass(frozen=True, slots=True)
class QuestionSessions:
    """The hidden directory with a directory for each session with open questions."""


@dataclass(frozen=True, slots=True)
class SessionQuestions:
    """The directory of the open questions of one session."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionPath:
    """The transcript of a session."""

    id: str


@dataclass(frozen=True, slots=True)
class ControlPath:
    """A control file of a session."""

    kind: ControlKind
    id: str


@dataclass(frozen=True, slots=True)
class QuestionPath:
    """A question of a session's agent."""

    session: str
    id: str


@dataclass(frozen=True, slots=True)
class ScratchPath:
    """A temporary file of an editor or a desktop."""

    name: str


@dataclass(frozen=True, slots=True)
class PastPath:
    """A file or directory of the past below the hidden `.versions`; only the server knows which it is."""

    path: str


Directory = Root | ControlDirectory | Families | Family | Searches | QuestionSessions | SessionQuestions
File = SessionPath | ControlPath | QuestionPath | ScratchPath | SearchPath
MountPath = Directory | File | PastPath


def parse_path(path: str) -> MountPath:
    """Parse a path from the kernel.

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
        case [directory, *names] if directory == VERSIONS:
            return PastPath("/".join(names))
        case [name]:
            return _at_root(name)
        case [directory, name] if directory == SUB_SESSIONS:
            return Family(name)
        case [directory, root, name] if directory == SUB_SESSIONS:
            return SessionPath(id_below(root, name))
        case [directory, words] if directory == SEARCH:
            return SearchPath(words)
        case [directory, name] if directory == QUESTIONS and (session := id_of_file_name(name)):
            return SessionQuestions(session)
        case [directory, name, question] if directory == QUESTIONS and (session := id_of_file_name(name)):
            return QuestionPath(session, question)
        case [directory, name]:
            for kind in CONTROL_KINDS:
                if directory == f".{kind}":
                    return ControlPath(kind, name)
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def is_past(path: str) -> bool:
    """Return whether a path is the hidden `.versions` or below it."""
    return f"{path}/".startswith(f"/{VERSIONS}/")


def _at_root(name: str) -> MountPath:
    if name == SUB_SESSIONS:
        return Families()
    if name == SEARCH:
        return Searches()
    if name == QUESTIONS:
        return QuestionSessions()
    for kind in CONTROL_KINDS:
        if name == f".{kind}":
            return ControlDirectory(kind)
    return ScratchPath(name) if is_scratch(name) else SessionPath(name)


# Attributes for `stat` and `df`

BLOCK = 4_096

READ_BYTES = 1 << 20
"""Preferred read size of `cat`, `cp` and others: the largest request of the kernel."""

_NANO = 1_000_000_000
_STAT_BLOCK = 512

Attributes = dict[str, Any]


class FileAttributes:
    """Builds the attributes of one mount's files: owner, group and mode."""

    def __init__(self, *, shared: bool) -> None:
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        self._file = stat.S_IFREG | (0o666 if shared else 0o644)
        self._directory = stat.S_IFDIR | (0o777 if shared else 0o755)
        self._began = time.time()

    def file(self, size: int, changed_at: float, *, mode: int | None = None) -> Attributes:
        """Return the attributes of a file; times are seconds since the epoch."""
        when = int(changed_at * _NANO)
        return {
            "st_mode": mode or self._file,
            "st_nlink": 1,
            "st_size": size,
            "st_blocks": -(-size // _STAT_BLOCK),
            "st_blksize": READ_BYTES,
            "st_mtime": when,
            "st_ctime": when,
            "st_atime": when,
            **self._owner,
        }

    def directory(self, changed_at: float, *, mode: int | None = None) -> Attributes:
        """Return the attributes of a directory."""
        when = int((changed_at or self._began) * _NANO)
        return {
            "st_mode": mode or self._directory,
            "st_nlink": 2,
            "st_mtime": when,
            "st_ctime": when,
            "st_atime": when,
            **self._owner,
        }

    @property
    def file_type(self) -> int:
        """Mode of a file in a listing."""
        return self._file

    @property
    def directory_type(self) -> int:
        """Mode of a directory in a listing."""
        return self._directory


def filesystem(sessions: int, used: int, nominal: int) -> dict[str, int]:
    """Return the statistics of the file system; free space is `nominal` bytes less the used bytes.

    The server reports how much it stores, but not its capacity.
    """
    blocks = -(-used // BLOCK)
    total = max(nominal // BLOCK, blocks)
    files = max(100_000, sessions)
    return {
        "f_bsize": BLOCK,
        "f_frsize": BLOCK,
        "f_blocks": total,
        "f_bfree": total - blocks,
        "f_bavail": total - blocks,
        "f_files": files,
        "f_ffree": files - sessions,
        "f_favail": files - sessions,
        "f_namemax": NAME_MAX,
    }
