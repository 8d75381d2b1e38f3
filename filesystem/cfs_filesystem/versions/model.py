"""The values of a store of versions: entries, changes and their authors."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cfs_filesystem._errors import NotFoundError


class DamagedVersionError(OSError):
    """A stored version cannot be read: its bytes are not those that were stored."""

    def __init__(self, detail: str) -> None:
        super().__init__(errno.EIO, detail)


class VersionsUnavailableError(OSError):
    """The store of versions cannot be reached or does not answer in time, or the files change all the time."""

    def __init__(self, detail: str) -> None:
        super().__init__(errno.EAGAIN, detail)


class EntryType(StrEnum):
    """What an entry is. The content of a link is its target."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"


class Kind(StrEnum):
    """What made a change."""

    WRITE = "write"
    DELETE = "delete"
    MOVE = "move"
    COPY = "copy"
    FOLDER = "folder"
    REWIND = "rewind"
    FORK = "fork"
    """What differs in a copy of a workspace when it is made, such as its files of an earlier time."""
    MERGE = "merge"
    """What another workspace has changed; `call` of the author names it, with its number."""
    OUTSIDE = "outside"
    """A program that changed the folder directly; the store learned of it later."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who made a change: a principal, and, if one is known, its agent and the tool call. Empty texts name none."""

    principal: str = ""
    agent: str = ""
    call: str = ""


OUTSIDE = Author()
"""The author of changes that did not pass through the server."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link as it was after the change `number`.

    `path` is relative to the workspace; bytes of a name that are no UTF-8 are surrogates (`os.fsdecode`). `mode` holds
    the permission bits, `size` the bytes of the content, `digest` its SHA-256 in hexadecimal; folders have none.
    """

    path: str
    number: int
    at: float
    type: EntryType
    mode: int
    size: int
    digest: str
    stamp: str = field(default="", compare=False)
    """What the folder on disk reported for this state; a different stamp means that a program may have changed it."""

    def equals(self, other: "Entry | None") -> bool:
        """Return whether another entry has the same type, permissions and content."""
        return other is not None and (self.type, self.mode, self.digest) == (other.type, other.mode, other.digest)


def require_kept(workspace: str, number: int | None, oldest: int, last: int) -> None:
    """Raise `NotFoundError` for a number of no version of a workspace that is kept. None stands for the last."""
    if number is None or oldest <= number <= last:
        return
    if 0 <= number < oldest:
        raise NotFoundError(f"version {number} of {workspace!r} is no longer kept: the oldest is {oldest}")
    raise NotFoundError(f"there is no version {number} of {workspace!r}: the last is {last}")


def equal(one: Entry | None, other: Entry | None) -> bool:
    """Return whether two entries are equal; None is an entry that is not there."""
    return other is None if one is None else one.equals(other)


@dataclass(frozen=True, slots=True)
class Content:
    """A content that is ready to be recorded. Only a `VersionStore` makes one.

    Without `encoded` and `parts` the store has it already.
    """

    digest: bytes
    size: int
    raw: bytes | None = None
    encoded: bytes | None = None
    base: int | None = None
    step: int = 0
    parts: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What a change leaves at a path. Folders have no content."""

    type: EntryType
    mode: int
    content: Content | None = None
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a workspace: its number, time in seconds since 1970, author, kind, and what it left at each path.

    None in `entries` means that the path was removed.
    """

    number: int
    at: float
    author: Author
    kind: Kind
    entries: Mapping[str, Entry | None]


@dataclass(frozen=True, slots=True)
class VersionRetention:
    """How much of the past of a workspace is kept. None sets no limit; what is there now is always kept."""

    seconds: float | None = None
    changes: int | None = None
    size: int | None = None
    """Stored bytes, as compressed."""
