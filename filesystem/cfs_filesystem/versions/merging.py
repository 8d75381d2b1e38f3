"""Merges three states of a workspace: what two sides made of a common base.

What only one side has changed is taken from it. A text file that both have changed is merged by lines; files that
cannot be merged stay as the target has them, and get the contents of both sides beside them. Nothing is lost.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from cfs_filesystem.versions.model import Entry, EntryType
from cfs_filesystem.versions.tree import parents

Tree = Mapping[str, Entry]
Reason = Literal["changed", "type", "removed", "removed_by_source"]

_TEXT_BYTES = 4 << 20
_NAME_BYTES = 255
_MARK = ".conflict-"


@dataclass(frozen=True, slots=True)
class PathConflict:
    """A path that both sides have changed, why it could not be merged, and the paths that hold what both have.

    `reason` is `changed` if both changed the content, `type` if a file, folder or link has become something else,
    `removed` if the target has removed what the source changed, and `removed_by_source` for the reverse. What one side
    has removed stays as the other has changed it.
    """

    path: str
    reason: Reason
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge does to the target: its new entries by path, None for what is removed.

    `texts` has the contents of the entries that were merged by lines, by path.
    """

    entries: Mapping[str, Entry | None]
    texts: Mapping[str, bytes]
    conflicts: tuple[PathConflict, ...]


def merge_trees(
    base: Tree, target: Tree, source: Tree, names: tuple[str, str], read: Callable[[Entry], bytes]
) -> Merge:
    """Merge what a source has changed since a base into a target.

    `names` are those of target and source, which conflicts get. `read` returns the content of an entry.
    """
    return _Merger(base, target, source, names, read).merge()


class _Merger:
    def __init__(
        self, base: Tree, target: Tree, source: Tree, names: tuple[str, str], read: Callable[[Entry], bytes]
    ) -> None:
        self._base = base
        self._target = target
        self._source = source
        self._names = names
        self._read = read
        self._result = dict(target)
        self._texts: dict[str, bytes] = {}
        self._conflicts: list[PathConflict] = []
        self._aside: dict[str, str] = {}
        """Paths of the source that the target has something else at, and where they went."""

    def merge(self) -> Merge:
        for path in sorted({*self._base, *self._source}):
            base, target, source = self._base.get(path), self._target.get(path), self._source.get(path)
            if not _equal(source, base) and not _equal(source, target):
                self._merge(path, base, target, source)
        self._keep_folders()
        entries = {
            path: self._result.get(path)
            for path in sorted({*self._result, *self._target})
            if not _equal(self._result.get(path), self._target.get(path))
        }
        texts = {path: text for path, text in self._texts.items() if path in entries}
        return Merge(entries, texts, tuple(self._conflicts))

    def _merge(self, path: str, base: Entry | None, target: Entry | None, source: Entry | None) -> None:
        if source is None:
            if _equal(target, base):
                self._result.pop(path, None)
            elif target is not None and target.type is not EntryType.FOLDER:
                self._conflicts.append(PathConflict(path, "removed_by_source", (path,)))
        elif target is None and base is not None and base.type is source.type is EntryType.FOLDER:
            pass  # only its permissions have changed; what is in it brings it back
        elif _equal(target, base) or (target is None and base is None):
            self._put(path, source)
        elif target is None:
            stored = self._put(path, source)
            self._conflicts.append(PathConflict(path, "removed", (stored,)))
        elif target.type is source.type and self._merged(path, base, target, source):
            pass
        elif target.type is EntryType.FOLDER or source.type is EntryType.FOLDER:
            self._conflicts.append(PathConflict(path, "type", (path, self._beside(path, source, 1))))
        else:
            reason: Reason = "changed" if target.type is source.type else "type"
            files = (path, self._beside(path, target, 0), self._beside(path, source, 1))
            self._conflicts.append(PathConflict(path, reason, files))

    def _merged(self, path: str, base: Entry | None, target: Entry, source: Entry) -> bool:
        """Merge permissions and, of text files, contents. Return whether this was possible."""
        same_type = base is not None and base.type is target.type
        mode = source.mode if base is not None and same_type and target.mode == base.mode else target.mode
        if target.digest == source.digest:
            self._result[path] = replace(target, mode=mode)
            return True
        if base is None or not same_type:
            return False
        if source.digest == base.digest:
            self._result[path] = replace(target, mode=mode)
            return True
        if target.digest == base.digest:
            self._result[path] = replace(source, mode=mode)
            return True
        if target.type is not EntryType.FILE or max(base.size, target.size, source.size) > _TEXT_BYTES:
            return False
        text = merge_lines(self._read(base), self._read(target), self._read(source))
        if text is None:
            return False
        self._texts[path] = text
        digest = hashlib.sha256(text).hexdigest()
        self._result[path] = replace(target, mode=mode, size=len(text), digest=digest, stamp="")
        return True

    def _put(self, path: str, entry: Entry) -> str:
        """Put an entry of the source where it is there, or beside what the target has above it. Return the path."""
        for above in parents(path):
            if above in self._aside:
                path = self._aside[above] + path[len(above) :]
                break
            holder = self._result.get(above)
            if holder is not None and holder.type is not EntryType.FOLDER:
                beside = self._beside(above, self._folder(above), 1)
                self._conflicts.append(PathConflict(above, "type", (above, beside)))
                path = beside + path[len(above) :]
                break
        for above in parents(path):
            if above not in self._result:
                self._result[above] = self._folder(above)
        self._result[path] = entry
        return path

    def _folder(self, path: str) -> Entry:
        return self._source.get(path, Entry(path, 0, 0.0, EntryType.FOLDER, 0o755, 0, ""))

    def _beside(self, path: str, entry: Entry, side: int) -> str:
        """Put an entry beside a path, with the name of its side."""
        number = 1
        while not self._is_free(beside := path_beside(path, self._names[side], number), entry):
            number += 1
        self._result[beside] = entry
        if side == 1:
            self._aside[path] = beside
        return beside

    def _is_free(self, path: str, entry: Entry) -> bool:
        """Return whether an entry can be put at a path, because nothing is there or comes there, or the same."""
        others = [other for other in (self._result.get(path), self._source.get(path)) if other is not None]
        return not others or (entry.type is not EntryType.FOLDER and all(other.equals(entry) for other in others))

    def _keep_folders(self) -> None:
        """Keep the folders of the target in which something stays, also where the source has a file."""
        for path in sorted(self._result):
            for above in parents(path):
                holder = self._result.get(above)
                if holder is None:
                    self._result[above] = self._target[above]
                elif holder.type is not EntryType.FOLDER:
                    self._result[above] = self._target[above]
                    self._conflicts.append(PathConflict(above, "type", (above, self._beside(above, holder, 1))))


def path_beside(path: str, name: str, number: int = 1) -> str:
    """Return the path beside another one that holds what the side `name` has there."""
    folder, slash, last = path.rpartition("/")
    suffix = f"{_MARK}{name.replace('/', '.')}" + (f".{number}" if number > 1 else "")
    while len((last + suffix).encode(errors="surrogateescape")) > _NAME_BYTES and len(last) > 1:
        last = last[:-1]
    return f"{folder}{slash}{last}{suffix}"


def _equal(one: Entry | None, other: Entry | None) -> bool:
    return other is None if one is None else one.equals(other)


@dataclass(frozen=True, slots=True)
class _Hunk:
    """Lines of the base, from `first` to before `last`, and those of one side that replace them."""

    first: int
    last: int
    start: int
    end: int


def merge_lines(base: bytes, target: bytes, source: bytes) -> bytes | None:
    """Merge two texts that were made of a third one. Returns None for a conflict, and if one of them is not text.

    Changes of the same or of neighbouring lines are a conflict, unless they are equal, as in `git merge-file`.
    """
    if b"\0" in base or b"\0" in target or b"\0" in source:
        return None
    old, ours, theirs = _lines(base), _lines(target), _lines(source)
    waiting = sorted(
        [(hunk, 0) for hunk in _hunks(old, ours)] + [(hunk, 1) for hunk in _hunks(old, theirs)],
        key=lambda member: (member[0].first, member[0].last),
    )
    merged: list[bytes] = []
    position = 0
    while waiting:
        group = [waiting.pop(0)]
        first, last = group[0][0].first, group[0][0].last
        while waiting and waiting[0][0].first <= last:
            group.append(waiting.pop(0))
            last = max(last, group[-1][0].last)
        sides = [
            _replaced(old, lines, [hunk for hunk, side in group if side == index], first, last)
            for index, lines in ((0, ours), (1, theirs))
        ]
        changed = {side for _, side in group}
        if len(changed) == 2 and sides[0] != sides[1]:
            return None
        merged += old[position:first]
        merged += sides[changed.pop()]
        position = last
    return b"".join(merged + old[position:])


def _lines(text: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in text.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _hunks(base: list[bytes], side: list[bytes]) -> list[_Hunk]:
    head = 0
    while head < min(len(base), len(side)) and base[head] == side[head]:
        head += 1
    tail = 0
    while tail < min(len(base), len(side)) - head and base[-1 - tail] == side[-1 - tail]:
        tail += 1
    matcher = SequenceMatcher(None, base[head : len(base) - tail], side[head : len(side) - tail])
    return [
        _Hunk(head + first, head + last, head + start, head + end)
        for tag, first, last, start, end in matcher.get_opcodes()
        if tag != "equal"
    ]


def _replaced(base: list[bytes], side: list[bytes], hunks: list[_Hunk], first: int, last: int) -> list[bytes]:
    lines, position = [], first
    for hunk in hunks:
        lines += base[position : hunk.first]
        lines += side[hunk.start : hunk.end]
        position = hunk.last
    return lines + base[position:last]
