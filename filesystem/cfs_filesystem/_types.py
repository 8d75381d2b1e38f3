"""The types of the package: paths, operations, grants and metadata of entries (G1, G2)."""

from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Literal, TypeAlias, TypedDict, get_args

Path: TypeAlias = str
"""An absolute logical path. `validate_path` defines which strings are legal. Paths are never normalised."""

Operation = Literal["list", "file", "read_binary", "read_file", "read_re", "write", "delete"]
"""An operation of a handle. This is the only list of these names, in display order."""

GrantedOperation: TypeAlias = Operation | Literal["read"]
"""An operation in a grant; `read` means the three that read content."""

OPERATIONS: frozenset[Operation] = frozenset(get_args(Operation))
READ_OPERATIONS: frozenset[Operation] = frozenset({"read_binary", "read_file", "read_re"})


EPOCH = datetime.fromtimestamp(0, UTC)
"""The time of a directory whose last change is unknown."""


def time_of(seconds: float) -> datetime:
    """Convert seconds since the epoch to a datetime; `EPOCH` if that is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return EPOCH


class Grant(TypedDict):
    """The right to perform `ops` at a prefix.

    The prefix `/a` covers the entry `/a` and everything below it; `/a/` covers only what is below. Neither covers
    `/ab`.
    """

    prefix: Path
    ops: AbstractSet[GrantedOperation]


class EntryMeta(TypedDict):
    """The metadata of an entry: `size` in bytes, and `updated_at`, an aware datetime in UTC.

    File systems may return subclasses with more keys.
    """

    path: Path
    size: int
    updated_at: datetime


class DirectoryMeta(EntryMeta):
    """The metadata of a directory: its path without a `/` at the end, size 0, and the time of its last known change."""

    directory: bool


class VersionedEntryMeta(EntryMeta):
    """The metadata of an entry in a file system with versions.

    Equal versions mean equal contents, but equal contents may have different versions.
    """

    version: str
