"""Finding what is below a prefix in a mapping of entries."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from cfs_filesystem._paths import covers
from cfs_filesystem._types import EntryMeta, Path


@runtime_checkable
class Ranged(Protocol):
    """A mapping that finds what is below a prefix without going through all of its keys."""

    def below(self, prefix: Path) -> Iterable[tuple[Path, EntryMeta]]:
        """Return every entry that the prefix covers, in any order."""


def entries_below(index: Mapping[Path, EntryMeta], prefix: Path) -> Iterable[tuple[Path, EntryMeta]]:
    """Return every entry of an index that a prefix covers, in any order."""
    if isinstance(index, Ranged):
        return index.below(prefix)
    paths = list(index)  # copied in one step: others may write meanwhile
    found = ((path, index.get(path)) for path in paths if covers(prefix, path))
    return [(path, meta) for path, meta in found if meta is not None]
