"""Finds the change that brought each line of a file: through renames, rewinds, forks and merges."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cfs import api
from cfs.cli.actions.files import changes_of
from cfs.contract.errors import Forbidden, InvalidRequest, NotFound, Unsupported
from cfs.contract.wire import FileChange, FileVersion
from cfs.transports.http import Client
from cfs.versions.blame import BlamedLine, blame, split, unchanged

HIDDEN = (NotFound, Forbidden, Unsupported, InvalidRequest)
"""Errors of what is not there, or not for the caller."""

_SOURCES = 10
"""How many removed files are compared with a new one, to find out where it came from."""

_MERGED = re.compile(r"(?P<workspace>.+)@(?P<number>[0-9]{1,15})-(?P<mark>[0-9a-f]{8})", re.DOTALL)
"""The call of a merge: the version of the other workspace that it has merged."""


@dataclass(frozen=True, slots=True)
class OlderChange:
    """What was there before the oldest change that is kept: its author is not known any more."""

    number: int
    at: float
    kind: str = "older"
    principal: str | None = None
    agent: str | None = None
    tool_call: str | None = None


@dataclass(frozen=True, slots=True)
class LineOrigin:
    """A change that brought a line, and the logical path that the file had then."""

    path: str
    change: FileChange | OlderChange

    @property
    def workspace(self) -> str:
        """The name of the workspace that has the change."""
        return self.path.split("/")[2]


class FileLineage:
    """Blames files of a server.

    A rewind, and a fork of the past, bring back lines of those who wrote them. Lines that a merge brought are those of
    the other workspace, if the caller may read it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._merged: dict[tuple[str, int], Mapping[int, BlamedLine[LineOrigin]]] = {}

    def lines(self, path: str, at: str) -> list[BlamedLine[LineOrigin]]:
        """Return the lines of a file at a version, each with its origin. Raises `NotFound` if it is not there."""
        return [self._merged_line(line) for line in blame(self._versions(path, at))]

    def _merged_line(self, line: BlamedLine[LineOrigin]) -> BlamedLine[LineOrigin]:
        path, change = line.version.path, line.version.change
        match = _MERGED.fullmatch(change.tool_call or "") if change.kind == "merge" else None
        if match is None:
            return line
        key = (path, change.number)
        if key not in self._merged:
            source = path.split("/", 3)
            source[2] = match["workspace"]
            try:
                self._merged[key] = self._lines_from("/".join(source), int(match["number"]), match["mark"], *key)
            except HIDDEN:
                self._merged[key] = {}
        return self._merged[key].get(line.number, line)

    def _lines_from(
        self, source: str, number: int, mark: str, path: str, merge: int
    ) -> Mapping[int, BlamedLine[LineOrigin]]:
        """Return the lines that a merge has from its source, by their numbers after it."""
        change = next(iter(self._client.call(api.file_changes(_workspace(source), number + 1, 1)).changes), None)
        if change is None or mark != hashlib.sha256(f"{number} {change.at!r}".encode()).hexdigest()[:8]:
            return {}  # a later workspace of this name
        lines = self.lines(source, str(number))
        content = self._client.call(api.read_file(path, at=merge)).content
        return {new: lines[old] for old, new in unchanged([line.text for line in lines], split(content))}

    def _versions(self, path: str, at: str) -> Iterator[tuple[LineOrigin, bytes]]:
        """Yield the contents of a file up to a version, the newest first, also those that it had under other names."""
        client, before = self._client, int(at) + 1 if at.isdigit() else None
        until = None if at.isdigit() else _seconds(at)
        while True:
            first: tuple[FileChange, bytes] | None = None
            digest, content = "", b""
            back: int | None = None
            for change in changes_of(client, path, before):
                version = _version(change, path)
                if version is None or (until is not None and change.at > until):
                    continue
                if back is not None and change.number > back:
                    continue
                if version.type != "file":
                    break
                if version.sha256 != digest:
                    digest, content = version.sha256 or "", client.call(api.read_file(path, at=change.number)).content
                if change.kind in ("rewind", "fork"):
                    back = self._earlier(path, change.number, digest)
                    if back is not None:
                        continue
                first = change, content
                yield LineOrigin(path, change), content
            else:
                oldest = client.call(api.file_changes(path, limit=1)).oldest
                if (older := self._older(path, oldest, first)) is not None:
                    yield older
                    return
            source = None if first is None else self._source(path, *first)
            if first is None or source is None:
                return
            path, before, until = source, first[0].number, None

    def _earlier(self, path: str, number: int, digest: str) -> int | None:
        """Return the last change before a number that left this content at a path, or None."""
        for change in changes_of(self._client, path, number):
            version = _version(change, path)
            if version is not None and version.type == "file" and version.sha256 == digest:
                return change.number
        oldest = self._client.call(api.file_changes(path, limit=1)).oldest
        try:
            content = self._client.call(api.read_file(path, at=oldest)).content if oldest else b""
        except HIDDEN:
            return None
        return oldest if oldest and hashlib.sha256(content).hexdigest() == digest else None

    def _older(self, path: str, oldest: int, first: tuple[FileChange, bytes] | None) -> tuple[LineOrigin, bytes] | None:
        """Return the content before the first change that is kept, or None if there was no file."""
        if not oldest or (first is not None and first[0].number <= oldest):
            return None
        try:
            content = self._client.call(api.read_file(path, at=oldest)).content
            updated_at = self._client.call(api.file(path, at=oldest)).updated_at
        except NotFound:
            return None
        return LineOrigin(path, OlderChange(oldest, updated_at)), content

    def _source(self, path: str, change: FileChange, content: bytes) -> str | None:
        """Return the path that a new file had before a change, or None if it has no other."""
        whole = self._client.call(api.file_changes(_workspace(path), change.number + 1, 1)).changes
        removed = [file.path for file in whole[0].files if file.type == "removed"] if whole else []
        removed.sort(key=lambda old: (-_shared(old, path), len(old)))
        for old in removed[:_SOURCES]:
            try:
                if self._client.call(api.read_file(old, at=change.number - 1)).content == content:
                    return old
            except HIDDEN:
                continue
        return None


def _workspace(path: str) -> str:
    """Return the logical path of the workspace that a file is in."""
    return "/".join(path.split("/")[:3])


def _shared(one: str, other: str) -> int:
    """Return the number of components that two paths share at their ends."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), 0)


def _version(change: FileChange, path: str) -> FileVersion | None:
    return next((file for file in change.files if file.path == path), None)


def _seconds(time: str) -> float:
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
