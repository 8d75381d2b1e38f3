"""The words of the gate: paths, operations, grants, and what is known of an entry (G1, G2)."""

from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Literal, TypeAlias, TypedDict, get_args

Path: TypeAlias = str
"""A logical absolute path. `validate_path` is the only judge of which strings are one; nothing ever changes one."""

Operation = Literal["list", "file", "read_binary", "read_file", "read_re", "write", "delete"]
"""What can be done through a handle. This is the one list of these names, in the order in which they are shown."""

GrantedOperation: TypeAlias = Operation | Literal["read"]
"""What a grant may name: an operation, or `read` for the three that read content."""

OPERATIONS: frozenset[Operation] = frozenset(get_args(Operation))
READ_OPERATIONS: frozenset[Operation] = frozenset({"read_binary", "read_file", "read_re"})


EPOCH = datetime.fromtimestamp(0, UTC)
"""The time of a directory whose last change is not known."""


def time_of(seconds: float) -> datetime:
    """Return the time that is so many seconds after the epoch; `EPOCH` for one that no datetime can hold."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return EPOCH


class Grant(TypedDict):
    """A right to do `ops` at a prefix.

    `/a` is the entry `/a` and all that is below it; `/a/` is only what is below. Neither has anything to do with `/ab`.
    """

    prefix: Path
    ops: AbstractSet[GrantedOperation]


class EntryMeta(TypedDict):
    """The metadata of an entry: `size` in bytes, and `updated_at`, an aware datetime in UTC.

    A file system that knows more returns a subclass with more keys.
    """

    path: Path
    size: int
    updated_at: datetime


class DirectoryMeta(EntryMeta):
    """What is known of a directory: its path without a `/` at the end, 0 bytes, and the last change that is known."""

    directory: bool


class VersionedEntryMeta(EntryMeta):
    """What is known of an entry of a file system that can tell its versions apart.

    Equal versions are equal contents. The other way round it need not be so.
    """

    version: str
