"""`cfs files`: list, print and compare the files of workspaces, now and at earlier versions."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import unified_diff

import typer

from cfs import api
from cfs.cli.base.output import is_terminal, show, visible
from cfs.contract.errors import NotFound
from cfs.contract.wire import FileChange, FileInfo, FileVersion
from cfs.transports.http import Client

_PAGE = 1000
_ROOT = "/workspaces/"
_VERSION = re.compile(r"[0-9]{1,15}|[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+(Z|[+-][0-9:]+)?)?|now")


@dataclass(frozen=True, slots=True)
class WorkspacePath:
    """A workspace, or a file or folder in it, at a version; `at` is None now."""

    workspace: str
    path: str
    at: str | None

    @property
    def logical(self) -> str:
        """The logical path."""
        return f"{_ROOT}{self.workspace}" + (f"/{self.path}" if self.path else "")

    def __str__(self) -> str:
        return self.logical.removeprefix(_ROOT) + ("" if self.at is None else f"@{self.at}")


def place_of(text: str) -> WorkspacePath:
    """Return what `NAME/PATH@VERSION` names. What follows the last `@` belongs to the name unless it is a version.

    For a name that ends like one, append `@now`.
    """
    name, sign, version = text.rpartition("@")
    if not sign or not name or not _VERSION.fullmatch(version):
        name, version = text, "now"
    workspace, _, path = name.strip("/").partition("/")
    if not workspace:
        raise typer.BadParameter(f"{text!r} names no workspace: write NAME, NAME/PATH or NAME/PATH@VERSION")
    return WorkspacePath(workspace, path, None if version == "now" else version)


def list_files(client: Client, text: str, *, as_json: bool) -> None:
    """Print the files at and below a place. Raises `NotFound` if there are none."""
    path, is_empty = place_of(text), True
    for info in below(client, path):
        is_empty = False
        if as_json:
            show(info.model_dump_json() + "\n")
        else:
            show(f"{info.size:>12}  {time_text(info.updated_at)}  {info.path.removeprefix(_ROOT)}\n")
    if is_empty:
        raise NotFound(f"there are no files at {path}")


def list_changes(client: Client, text: str, limit: int, *, as_json: bool) -> None:
    """Print the changes at and below a place, the newest first."""
    path, before = place_of(text), None
    if path.at is not None:
        raise typer.BadParameter("a log has no version: leave out what follows the '@'")
    while limit > 0:
        page = client.call(api.file_changes(path.logical, before, min(limit, _PAGE)))
        for change in page.changes:
            show(f"{change.model_dump_json()}\n" if as_json else _line(change))
        limit, before = limit - len(page.changes), page.next
        if before is None:
            return


def print_file(client: Client, text: str) -> None:
    """Write the bytes of a file to standard output."""
    path = place_of(text)
    content = client.call(api.read_file(path.logical, at=path.at)).content
    if is_terminal(sys.stdout):
        show(content.decode(errors="replace"))
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def compare(client: Client, old: str, new: str | None) -> bool:
    """Print what differs between two places, and return whether anything does."""
    one = place_of(old)
    other = WorkspacePath(one.workspace, one.path, None) if new is None else place_of(new)
    one, other = _fixed(client, one), _fixed(client, other)
    before, after = _versions(client, one), _versions(client, other)
    for path, versions in ((one, before), (other, after)):
        if not versions and not client.call(api.file_changes(path.logical, limit=1)).changes:
            raise NotFound(f"there is nothing at {path}, and never was: write NAME, NAME/PATH or NAME/PATH@VERSION")
    differs = False
    for name in sorted(before | after):
        if before.get(name) == after.get(name):
            continue
        texts = [
            client.call(api.read_file(path.logical + name, at=path.at)).content if name in versions else None
            for path, versions in ((one, before), (other, after))
        ]
        if texts[0] != texts[1]:
            differs = True
            names = [f"{path.logical.removeprefix(_ROOT)}{name}" for path in (one, other)]
            for line in _difference(texts[0], texts[1], names, [f"{one.at}", f"{other.at}"]):
                show(line)
    return differs


def _fixed(client: Client, path: WorkspacePath) -> WorkspacePath:
    """Return a place at its last version instead of now, so that equal contents have equal versions."""
    if path.at is not None:
        return path
    last = client.call(api.file_changes(f"{_ROOT}{path.workspace}", limit=1)).last
    return WorkspacePath(path.workspace, path.path, str(last))


def _difference(old: bytes | None, new: bytes | None, names: list[str], labels: list[str]) -> Iterator[str]:
    try:
        lines = [() if data is None else data.decode().splitlines(keepends=True) for data in (old, new)]
    except UnicodeDecodeError:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
        return
    first, second = (
        "/dev/null" if data is None else f"{name}\t{label}"
        for data, name, label in zip((old, new), names, labels, strict=True)
    )
    if not any(lines):
        yield f"--- {first}\n+++ {second}\n"
    for line in unified_diff(lines[0], lines[1], first, second):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _versions(client: Client, path: WorkspacePath) -> dict[str, str | None]:
    """Return the versions of all files at and below a place, by what follows it in their paths."""
    return {info.path.removeprefix(path.logical): info.version for info in below(client, path)}


def changes_of(client: Client, path: str, before: int | None = None) -> Iterator[FileChange]:
    """Yield the changes at and below a logical path, the newest first; with `before` only those before a number."""
    while True:
        page = client.call(api.file_changes(path, before, _PAGE))
        yield from page.changes
        if page.next is None:
            return
        before = page.next


def below(client: Client, path: WorkspacePath) -> Iterator[FileInfo]:
    """Yield the files at and below a place."""
    prefix, after = path.logical if path.path else f"{path.logical}/", ""
    while True:
        page = client.call(api.files(prefix, after, _PAGE, path.at))
        yield from page.files
        if page.next is None:
            return
        after = page.next


def _line(change: FileChange) -> str:
    author = author_of(change.principal, change.agent, change.tool_call)
    paths = [_path(file) for file in change.files]
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    names = ", ".join(paths[:3])
    return visible(f"{change.number:>6}  {time_text(change.at)}  {change.kind:<8} {author:<16} {names}{more}") + "\n"


def _path(file: FileVersion) -> str:
    name = file.path.removeprefix(_ROOT).partition("/")[2]
    return f"-{name}" if file.type == "removed" else f"{name}/" if file.type == "folder" else name


def author_of(*names: str | None) -> str:
    """Return who made a change: the principal, the agent and its call, as far as they are known, or `-`."""
    return " ".join(name for name in names if name) or "-"


def time_text(seconds: float) -> str:
    """Return a time, in seconds since 1970, to the second in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
