"""Finding what is below a prefix in a mapping of entries."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from cfs_filesystem._paths import covers
from cfs_filesystem._types import DirectoryMeta, EntryMeta, Path


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


def directly_in(inside: Path, entries: Iterable[tuple[Path, EntryMeta]]) -> dict[Path, EntryMeta]:
    """Return what is one component below a prefix: entries, and a directory for each that is deeper.

    A directory has the time of the newest entry in it. What is an entry as well is the entry.
    """
    found: dict[Path, EntryMeta] = {}
    directories: dict[Path, EntryMeta] = {}
    for path, meta in entries:
        name, slash, _ = path[len(inside) :].partition("/")
        if slash:
            directories[inside + name] = newer(inside + name, meta, directories.get(inside + name))
        else:
            found[path] = meta
    return directories | found


def newer(path: Path, known: EntryMeta, other: EntryMeta | None = None) -> DirectoryMeta:
    """Describe a directory of which things are known: it has changed when the newest of them did."""
    times = [known["updated_at"], *([] if other is None else [other["updated_at"]])]
    return DirectoryMeta(path=path, size=0, updated_at=max(times), directory=True)
