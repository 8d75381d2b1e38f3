"""Which directories a file system has, and the hooks for them (G5); by default those above its entries.

Hooks get a directory as the prefix of what is in it: `/`, `/a/`. It is within a registered prefix.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from cfs_filesystem._errors import ConflictError, NotFoundError
from cfs_filesystem._index import directly_in, entries_below, newer
from cfs_filesystem._types import DirectoryMeta, EntryMeta, Grant, Path

EVERYTHING: tuple[Grant, ...] = (Grant(prefix="/", ops=frozenset({"list", "file", "read"})),)


class Layout(ABC):
    """The directories of a file system: those in it, and those that lead to its prefixes."""

    prefixes: tuple[Path, ...]

    @abstractmethod
    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:
        """See `FileSystemBase`."""

    # -- what handles ask ---------------------------------------------------------------------------------------------

    def _members(self, inside: Path) -> dict[Path, EntryMeta]:
        """Return what is directly in a directory, by path; raise `NotFoundError` if it is none.

        A registered prefix is a directory, and so is what leads to one, be there anything or not.
        """
        deeper = [prefix for prefix in self.prefixes if prefix.startswith(inside)]
        found: dict[Path, EntryMeta] = {}
        try:
            if self._is_within(inside):
                found = {meta["path"]: meta for meta in self._scan_impl(inside)}
        except NotFoundError:
            if not deeper:
                raise
        leading: dict[Path, EntryMeta] = {}
        for prefix in deeper:
            known = None if prefix == inside else self._directory(prefix)
            if known is not None:
                path = inside + prefix[len(inside) :].partition("/")[0]
                leading[path] = newer(path, known, leading.get(path))
        return leading | found

    def _directory(self, inside: Path) -> DirectoryMeta | None:
        """Return what is known of a directory, or None if there is none."""
        known = self._directory_impl(inside) if self._is_within(inside) else None
        if known is None and any(prefix.startswith(inside) for prefix in self.prefixes):
            return DirectoryMeta(path=inside[:-1] or "/", size=0, updated_at=0.0, directory=True)
        return known

    def _is_within(self, inside: Path) -> bool:
        return any(inside.startswith(prefix) for prefix in self.prefixes)

    # -- hooks ----------------------------------------------------------------------------------------------------

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        """Return what is directly in a directory, in any order; raise `NotFoundError` if there is no such directory."""
        found = directly_in(inside, entries_below(self._snapshot_impl(EVERYTHING), inside))
        if not found:
            raise NotFoundError(f"there is no directory {inside[:-1]!r}", inside[:-1])
        return found.values()

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        """Return what is known of a directory, or None if there is none."""
        known: DirectoryMeta | None = None
        for _, meta in entries_below(self._snapshot_impl(EVERYTHING), inside):
            known = newer(inside[:-1] or "/", meta, known)
        return known

    def _make_directory_impl(self, path: Path) -> None:
        """Make an empty directory; raise `ConflictError` when something has the path."""
        raise ConflictError(f"{path!r} cannot be made: this file system keeps no empty directories", path)

    def _remove_directory_impl(self, path: Path) -> None:
        """Take an empty directory away; raise `ConflictError` when something is in it, or it has gone meanwhile."""
        raise ConflictError(f"{path!r} is not empty", path)
