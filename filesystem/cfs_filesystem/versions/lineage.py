"""Finds what two workspaces have had in common, one of which is a fork of the other: the base of a merge."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cfs_filesystem._errors import NotFoundError
from cfs_filesystem.versions.merging import Merge, merge_trees
from cfs_filesystem.versions.model import Change, Entry, Kind
from cfs_filesystem.versions.store import VersionStore

_PAGE = 500
_CALL = re.compile(r".*@(?P<number>[0-9]{1,15})-(?P<mark>[0-9a-f]{8})", re.DOTALL)


def changes_since(store: VersionStore, workspace: str, number: int, last: int | None = None) -> Iterator[Change]:
    """Yield the changes of a workspace after a number, up to `last`, the newest first."""
    before = None if last is None else last + 1
    while True:
        page = store.changes(workspace, "", before, _PAGE)
        yield from (change for change in page if change.number > number)
        if len(page) < _PAGE or page[-1].number <= number:
            return
        before = page[-1].number


def merged_version(store: VersionStore, workspace: str, number: int) -> str:
    """Name a version of a workspace, as the author's `call` of a merge does: `main-2@12-1a2b3c4d`.

    The end is another one for a workspace that gets the same name later.
    """
    return f"{workspace}@{number}-{_mark(store, workspace, number)}"


def merge_base(store: VersionStore, target: str, source: str, numbers: tuple[int, int]) -> Mapping[str, Entry]:
    """Return the entries that two workspaces had in common last, as they are at some `numbers`.

    These are the entries at the fork, or those that the last merge between both has brought over. For a path that was
    taken back since, an older one counts. Raises `NotFoundError` if they have nothing in common that is still kept.
    """
    common = store.common(target, source)
    start = 0 if common is None else common
    sides = ((target, source, numbers[0]), (source, target, numbers[1]))
    points: list[_Point] = []
    undone = {}
    for workspace, other, last in sides:
        undone[workspace] = _UndoneChanges(start)
        for change in changes_since(store, workspace, start, last):
            undone[workspace].add(change)
            if change.kind is Kind.MERGE and (number := _merged(store, other, change)) is not None:
                places = {workspace: change.number, other: number}
                points.append(_Point(change.at, store.tree_at(other, number), places))
    points.sort(key=lambda point: -point.at)
    if common is not None:
        points.append(_Point(-1.0, _forked(store, target, source, common), {}))
    if not points:
        raise NotFoundError(
            f"{source!r} and {target!r} have no past in common that is kept: only a copy and its original can be merged"
        )
    base = {}
    for path in {path for point in points for path in point.entries}:
        for point in points:
            if not any(undone[workspace].has(path, number) for workspace, number in point.places.items()):
                break
        if (entry := point.entries.get(path)) is not None:
            base[path] = entry
    return base


def plan_merge(
    store: VersionStore, target: str, source: str, numbers: tuple[int, int]
) -> tuple[Merge, Mapping[str, Entry]]:
    """Return the merge of a workspace into another one, at some `numbers` of both, and the entries of the target.

    Raises `NotFoundError` if they have nothing in common that is still kept.
    """
    base = merge_base(store, target, source, numbers)
    before = store.tree_at(target, numbers[0])
    changed = store.tree_at(source, numbers[1])
    # Both have the contents of both.
    return merge_trees(base, before, changed, (target, source), lambda entry: store.read(source, entry)), before


@dataclass(frozen=True, slots=True)
class _Point:
    """What both sides had in common at a time. `places` are the numbers that the change then had in the workspaces."""

    at: float
    entries: Mapping[str, Entry]
    places: Mapping[str, int]


class _UndoneChanges:
    """The changes of a workspace after `start` that rewinds have taken back, by path."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._open: dict[str, tuple[int, Entry | None]] = {}
        """The rewinds for which the change that they went back to is not found yet, with what they left."""
        self._ranges: dict[str, list[tuple[int, int]]] = {}

    def add(self, change: Change) -> None:
        """Add a change; the newest comes first. A rewind went back to the last change that left the same."""
        for path, entry in change.entries.items():
            if path in self._open:
                number, left = self._open[path]
                if not (entry is None if left is None else left.equals(entry)):
                    continue
                del self._open[path]
                self._ranges.setdefault(path, []).append((change.number, number))
            if change.kind is Kind.REWIND:
                self._open[path] = (change.number, entry)

    def has(self, path: str, number: int) -> bool:
        """Return whether what a change has made of a path was taken back, and not brought back since."""
        ranges = self._ranges.get(path, [])
        if path in self._open:
            ranges = [*ranges, (self._start, self._open[path][0])]
        return any(first < number < last for first, last in ranges)


def _forked(store: VersionStore, target: str, source: str, common: int) -> Mapping[str, Entry]:
    """Return what the fork began with: it may have the files of a time before the last change that both share."""
    for workspace in (source, target):
        if store.last(workspace) > common:
            (change,) = store.changes(workspace, "", common + 2, 1)
            if change.kind is Kind.FORK:
                return store.tree_at(workspace, common + 1)
    return store.tree_at(target, common)


def _merged(store: VersionStore, workspace: str, change: Change) -> int | None:
    """Return the number of the version of a workspace that a merge brought over; None if it was of another one."""
    match = _CALL.fullmatch(change.author.call)
    if match is None:
        return None
    number = int(match["number"])
    exists = store.oldest(workspace) <= number <= store.last(workspace)
    return number if exists and _mark(store, workspace, number) == match["mark"] else None


def _mark(store: VersionStore, workspace: str, number: int) -> str:
    changes = store.changes(workspace, "", number + 1, 1)
    text = repr(changes[0].at) if changes and changes[0].number == number else ""
    return hashlib.sha256(f"{number} {text}".encode()).hexdigest()[:8]
