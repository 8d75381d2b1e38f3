"""What a path of the mount stands for; behind this module nobody splits paths (F5)."""

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import Any, Literal

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
class SessionPath:
    """The transcript of a session."""

    id: str


@dataclass(frozen=True, slots=True)
class ControlPath:
    """A control file of a session."""

    kind: ControlKind
    id: str


@dataclass(frozen=True, slots=True)
class ScratchPath:
    """A file that an editor or a desktop makes for itself."""

    name: str


Directory = Root | ControlDirectory | Families | Family
File = SessionPath | ControlPath | ScratchPath
MountPath = Directory | File


def parse_path(path: str) -> MountPath:
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
            return SessionPath(id_below(root, name))
        case [directory, name]:
            for kind in CONTROL_KINDS:
                if directory == f".{kind}":
                    return ControlPath(kind, name)
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _at_root(name: str) -> MountPath:
    if name == SUB_SESSIONS:
        return Families()
    for kind in CONTROL_KINDS:
        if name == f".{kind}":
            return ControlDirectory(kind)
    return ScratchPath(name) if is_scratch(name) else SessionPath(name)


# What `stat` and `df` show.

BLOCK = 4_096

READ_BYTES = 1 << 20
"""What `cat`, `cp` and others then read at a time: the largest piece that the kernel asks for in one request."""

_NANO = 1_000_000_000
_STAT_BLOCK = 512

Attributes = dict[str, Any]


class FileAttributes:
    """Makes attributes for one mount: whose files they are, and who may touch them as far as modes can tell."""

    def __init__(self, *, shared: bool) -> None:
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        self._file = stat.S_IFREG | (0o666 if shared else 0o644)
        self._directory = stat.S_IFDIR | (0o777 if shared else 0o755)
        self._began = time.time()

    def file(self, size: int, changed_at: float, *, mode: int | None = None) -> Attributes:
        """Describe a file; times are seconds since the epoch."""
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

    def directory(self, changed_at: float) -> Attributes:
        """Describe a directory."""
        when = int((changed_at or self._began) * _NANO)
        return {
            "st_mode": self._directory,
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
    """Describe the whole: what is used is true, what is free is `nominal` bytes less that.

    The server says how much it holds, and not how much it could.
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
