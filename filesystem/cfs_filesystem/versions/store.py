"""What a store of versions does. `VersionStoreConformance` in `cfs_filesystem.versions.testing` tests it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

from cfs_filesystem.versions.model import Author, Change, Content, Entry, Kind, State, VersionRetention


class VersionStore(Protocol):
    """The past of workspaces: each change has a number, which counts up from 1 in its workspace.

    Number 0 is the workspace before its first change. `number=None` means now. Paths are relative to the workspace and
    have no `/` at either end; `""` is the workspace itself. All methods may be called by several threads. Methods that
    read the past raise `NotFoundError` for numbers that do not exist, or are no longer kept. If the store fails, each
    method raises `OSError`: `VersionsUnavailableError` if it cannot be reached.
    """

    shared: bool
    """Whether other programs use the store, too."""

    # Record.

    def changing(self, workspaces: Iterable[str], path: str | None = None) -> AbstractContextManager[None]:
        """During a block, no other program that shares the store changes these workspaces; with `path`, this in one.

        What the block records is refused if it has lost this right meanwhile. Blocks of the same program are not kept
        apart from each other if no other program can use the store. Blocks cannot be nested.
        """

    def prepare(
        self,
        workspace: str,
        data: bytes,
        previous: Entry | None = None,
        previous_data: Callable[[], bytes] | None = None,
    ) -> Content:
        """Encode a content, so that `record` is fast. `previous_data` reads that of the entry which it replaces.

        It may run while the file is written. A content that is never recorded takes no space.
        """

    def keep(self, workspace: str, source: BinaryIO, previous: Entry | None = None) -> Content:
        """Store a content of any size at once, read in pieces. Large ones are stored in chunks.

        Call it and the `record` that follows in one block `holding`.
        """

    def holding(self) -> AbstractContextManager[None]:
        """During a block, `prune` removes nothing, so that contents can be stored before they are recorded."""

    def content_of(self, entry: Entry) -> Content:
        """Return the content of an entry of the same workspace, to record it again: for moves, copies and rewinds."""

    def record(
        self,
        workspace: str,
        author: Author,
        kind: Kind,
        states: Mapping[str, State | None],
        above: Mapping[str, State] = MappingProxyType({}),
        *,
        ends: bool = False,
    ) -> int:
        """Record one change: what is at each path afterwards, or None where something was removed. Return its number.

        It is one transaction: it is there as a whole, or not at all, whenever the process is killed. `above` are
        folders, which belong to it only where no folder is recorded. With `ends` nothing more is changed or recorded in
        the block of `changing`, so that others may begin theirs.
        """

    def restamp(self, workspace: str, stamps: Mapping[str, str]) -> None:
        """Note new stamps of entries that have not changed."""

    # Read.

    def last(self, workspace: str) -> int:
        """Return the number of the last change; 0 if there is none."""

    def oldest(self, workspace: str) -> int:
        """Return the oldest number at which the workspace can be read."""

    def number_at(self, workspace: str, time: float, order: int | None = None) -> int:
        """Return the number of the last change at or before a time.

        With `order`, a number in the order in which the store numbers the changes of all workspaces and what else it
        records, the time counts only if the changes have none.
        """

    def common(self, workspace: str, other: str) -> int | None:
        """Return the number of the last change that two workspaces share, because one is a fork of the other.

        None if they share none, or none that is still kept.
        """

    def at(self, workspace: str, path: str, number: int | None = None) -> Entry | None:
        """Return the entry at a path after a change, or None if nothing was there."""

    def tree_at(self, workspace: str, number: int | None = None, below: str = "") -> dict[str, Entry]:
        """Return all entries after a change at and below a path, by path."""

    def paths(self, workspace: str, below: str = "") -> dict[str, Entry]:
        """Return the newest entry of each path at and below a path that has a version, also of removed ones."""

    def changes(
        self, workspace: str, path: str = "", before: int | None = None, limit: int | None = None
    ) -> Sequence[Change]:
        """Return the changes at and below a path, the newest first, with what they did there.

        With `before` those with smaller numbers.
        """

    def changes_between(self, workspace: str, first: int, last: int) -> dict[str, tuple[Entry | None, Entry | None]]:
        """Return what differs between two numbers: by path, the entry at the first and at the last. Either may be
        the older one."""

    def read(self, workspace: str, entry: Entry) -> bytes:
        """Return the content of an entry. Raises `DamagedVersionError` unless its bytes have its digest."""

    def open(self, workspace: str, entry: Entry) -> BinaryIO:
        """Open the content of an entry for reading, seekable. Large ones are in a temporary file."""

    # Keep and forget.

    def workspaces(self) -> Sequence[str]:
        """Return the names of the workspaces that have versions."""

    def usage(self, workspace: str) -> int:
        """Return the stored bytes of a workspace. Content that it shares with its forks counts for each."""

    def fork(self, workspace: str, copy: str) -> None:
        """Give a new workspace the whole past of another one, sharing its contents. Replaces the past of `copy`."""

    def rename(self, workspace: str, name: str) -> None:
        """Give the past of a workspace to another name. Replaces the past of that name."""

    def purge(self, workspace: str) -> None:
        """Forget a workspace: its rows and contents are overwritten with zeros."""

    def prune(self, workspace: str, retention: VersionRetention) -> int:
        """Forget the oldest changes beyond the limits, overwriting them with zeros. Return `oldest` afterwards."""

    def claim_pruning(self, seconds: float) -> bool:
        """Return whether this program is the one that prunes now; at most once in some seconds for all programs."""

    def checkpoint(self) -> None:
        """Flush what was recorded to the disk, unless each record does so."""

    def backup(self, target: Path) -> None:
        """Write a copy of the store, which is in use, to a new file that only its owner can read. Raises `OSError`."""

    def check_integrity(self) -> None:
        """Read everything. Raises `DamagedVersionError` with what is wrong."""

    def close(self) -> None:
        """Close the store."""


_MANY = 32
"""From so many paths on, one read of a whole tree is quicker than one of each path."""


def entries_at(
    store: VersionStore, workspace: str, paths: Collection[str], number: int | None = None
) -> dict[str, Entry | None]:
    """Return the entries at paths after a change, as `VersionStore.at` does. For many paths the whole tree is read."""
    if len(paths) < _MANY:
        return {path: store.at(workspace, path, number) for path in paths}
    tree = store.tree_at(workspace, number)
    return {path: tree.get(path) for path in paths}
