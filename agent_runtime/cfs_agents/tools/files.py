"""File tools of an agent: read, write, edit, list and search files through a handle (A2, A3, G1)."""

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field

from cfs_agents.tools.definition import FileAccess, Tool, tool
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.gates import FileGate, PartialReads
from cfs_agents.tools.ignored import IgnoredFiles, ignored_below
from cfs_agents.tools.pages import page_of
from cfs_agents.tools.paths import WORKSPACE, directory_path, file_path
from cfs_agents.tools.replacement import line_of, replaced
from cfs_agents.tools.results import CutText
from cfs_agents.tools.search import search
from cfs_filesystem import (
    AccessDeniedError,
    ConflictError,
    EntryMeta,
    FileSystemError,
    FsHandle,
    InvalidArgumentError,
    NotFoundError,
    Path,
)
from cfs_filesystem.look_alikes import folded

_T = TypeVar("_T")

MAX_ENTRIES = 500
MAX_IGNORED = 10
LARGEST_FILE = 16 << 20

_File = Annotated[str, "absolute, or relative to /workspace"]


def _reads(arguments: Mapping[str, Any]) -> FileAccess:
    return FileAccess(file_path(arguments["path"]), writes=False)


def _writes(arguments: Mapping[str, Any]) -> FileAccess:
    return FileAccess(file_path(arguments["path"]), writes=True)


def _looks(arguments: Mapping[str, Any]) -> FileAccess:
    return FileAccess(directory_path(arguments.get("path", WORKSPACE)), writes=False)


READ_FILE, WRITE_FILE, EDIT_FILE = "read_file", "write_file", "edit_file"
LIST_DIRECTORY, SEARCH_FILES = "list_directory", "search_files"
"""Names of the tools."""


class FileTools:
    """The file tools of one agent. `handle` has the agent's directory as `/`. Threads may share the object.

    `gate` sees each read and decides about each write. `note_of` returns a line that stands before the text of a file
    that is read, or nothing. Of `ignored` files, lists and searches show those alone that a call names. With
    `look_alikes`, files may be created beside those whose names look the same.
    """

    def __init__(
        self,
        handle: FsHandle,
        gate: FileGate | None = None,
        *,
        ignored: IgnoredFiles | None = None,
        note_of: Callable[[Path], str] = lambda _: "",
        look_alikes: bool = False,
    ) -> None:
        self._handle = handle
        self._gate = gate or PartialReads()
        self._ignored = ignored
        self._note_of = note_of
        self._look_alikes = look_alikes
        self._changing = threading.Lock()

    def tools(self) -> list[Tool]:
        """Return the tools."""
        return [
            tool("Read a text file, or some of its lines.", name=READ_FILE, touches=_reads, paging=["start_column"])(
                self.read_file
            ),
            tool("Write a whole text file; makes directories above it.", name=WRITE_FILE, touches=_writes)(
                self.write_file
            ),
            tool("Replace a text that stands just once in a file.", name=EDIT_FILE, touches=_writes)(self.edit_file),
            tool("List a directory.", name=LIST_DIRECTORY, touches=_looks, paging=["after"])(self.list_directory),
            tool(
                "Search the lines of text files, except hidden ones, for a regular expression; gives"
                " path:line:column: text.",
                name=SEARCH_FILES,
                touches=_looks,
                paging=["after"],
            )(self.search_files),
        ]

    def read_file(
        self,
        path: _File,
        start_line: Annotated[int | None, Field(ge=1, description="first line, from 1")] = None,
        end_line: Annotated[int | None, Field(ge=1, description="last line, included")] = None,
        start_column: Annotated[int | None, Field(ge=1, description="first character of the first line")] = None,
    ) -> str:
        """Return the text, or the requested lines with a note that gives their numbers and the total.

        What is cut at the length of a page is a `CutText`, whose note has the arguments that continue it.
        """
        logical = file_path(path)
        text = self._looking(logical, lambda: self._text(logical))
        if not text:
            self._gate.read(logical, text, 0, 0)
            return "[the file is empty]"
        page = page_of(logical, text, start_line, end_line, start_column)
        self._gate.read(logical, text, page.start, page.end)
        note = self._note_of(logical)
        rendered = f"{note}\n{page.text}" if note else page.text
        return CutText(rendered) if page.cut else rendered

    def write_file(self, path: _File, content: str) -> str:
        """Write a text atomically; returns a description of the change."""
        logical = file_path(path)
        with self._changing, self._gate.writing(logical, content, lambda: self._present(logical)):
            before = self._size(logical)
            if before is None:
                self._require_creatable(logical)
            size = self._looking(logical, lambda: self._handle.write(logical, content))["size"]
        lines = content.count("\n") + (not content.endswith("\n") and content != "")
        outcome = f"created {logical}" if before is None else f"changed {logical}, which had {before:,} bytes"
        return f"{outcome}: {lines:,} lines, {size:,} bytes"

    def edit_file(
        self,
        path: _File,
        old: Annotated[str, "exactly as in the file, and enough of it to be unique"],
        new: str,
    ) -> str:
        """Replace the only occurrence of a text; writes nothing if there is none or more than one."""
        logical = file_path(path)
        with self._changing, self._gate.writing(logical):
            before = self._looking(logical, lambda: self._text(logical))
            text, start = replaced(logical, before, old, new)
            self._looking(logical, lambda: self._handle.write(logical, text))
            self._gate.edited(logical, before, text, start, start + len(old))
        return f"changed {logical} at line {line_of(text, start)}: {len(old):,} characters replaced by {len(new):,}"

    def list_directory(
        self,
        path: Annotated[str, "absolute, or relative to /workspace"] = WORKSPACE,
        after: Annotated[str | None, "only the names behind this one"] = None,
    ) -> str:
        """Return the directories and files directly in a directory, sorted, with sizes in bytes."""
        logical = directory_path(path)
        try:
            entries = self._handle.scan(logical)
        except NotFoundError:
            if self._size(logical) is not None:
                raise ToolError(f"{logical!r} is a file: use read_file") from None
            raise self._missing(logical) from None
        entries, ignored = self._apart(logical, entries)
        directories = sum("directory" in entry for entry in entries)
        title = f"{logical}: {directories} directories, {len(entries) - directories} files"
        named = [(entry["path"].rpartition("/")[2], entry) for entry in entries]
        rest = [(name, entry) for name, entry in named if after is None or name > after]
        lines = [
            f"{name}/" if "directory" in entry else f"{name} ({entry['size']:,} bytes)"
            for name, entry in rest[:MAX_ENTRIES]
        ]
        text = "\n".join([title, *lines])
        if len(rest) <= MAX_ENTRIES:
            return f"{text}\n{_named(ignored)}" if ignored else text
        last = rest[MAX_ENTRIES - 1][0]
        return CutText(f"{text}\n[... {len(rest) - MAX_ENTRIES:,} more; go on with after={last!r}]")

    def search_files(
        self,
        pattern: str,
        path: Annotated[str, "file or directory"] = WORKSPACE,
        glob: Annotated[str | None, "such as *.py"] = None,
        ignore_case: bool = False,
        after: Annotated[str | None, "only matches behind this PATH:LINE"] = None,
    ) -> str:
        """Return the matching lines, up to a limit, and the number of files searched."""
        logical = directory_path(path)
        is_ignored = ignored_below(self._ignored, logical)
        findings = self._looking(
            logical,
            lambda: search(
                self._handle, pattern, logical, glob, ignore_case=ignore_case, after=after, is_ignored=is_ignored
            ),
        )
        return CutText(findings.text()) if findings.cut else findings.text()

    def _apart(self, logical: Path, members: Sequence[EntryMeta]) -> tuple[list[EntryMeta], list[EntryMeta]]:
        """Return the members of a directory that are listed, and the files among them that git ignores."""
        is_ignored = ignored_below(self._ignored, logical)
        listed: list[EntryMeta] = []
        ignored: list[EntryMeta] = []
        for entry in members:
            hidden = is_ignored is not None and "directory" not in entry and is_ignored(entry["path"])
            (ignored if hidden else listed).append(entry)
        return listed, ignored

    def _text(self, logical: Path) -> str:
        size = self._handle.file(logical)["size"]
        if size > LARGEST_FILE:
            raise ToolError(f"{logical!r} has {size:,} bytes, which is too much: read a part of it with a command")
        try:
            return self._handle.read_file(logical)
        except InvalidArgumentError as error:
            raise ToolError(
                f"{error.detail.partition(';')[0]}: it has {size:,} bytes, look at it by a command"
            ) from None

    def _present(self, logical: Path) -> str | None:
        """Return the text of a file; None if it is missing or has none."""
        try:
            return self._text(logical)
        except (FileSystemError, ToolError):
            return None

    def _size(self, logical: Path) -> int | None:
        """Return the size of a file; None if it is missing or not readable."""
        try:
            return self._handle.file(logical)["size"]
        except FileSystemError:
            return None

    def _looking(self, logical: Path, action: Callable[[], _T]) -> _T:
        """Run an action on a file and turn errors of the file system into a `ToolError` for the model."""
        try:
            return action()
        except NotFoundError:
            raise self._missing(logical) from None
        except AccessDeniedError as error:
            raise ToolError(f"{error.detail}. {self._handle.describe_grants()}") from None
        except ConflictError as error:
            if self._is_directory(logical):
                raise ToolError(f"{logical!r} is a directory") from None
            raise ToolError(error.detail) from None

    def _is_directory(self, logical: Path) -> bool:
        try:
            return self._handle.is_directory(logical)
        except FileSystemError:
            return False

    def _missing(self, logical: Path) -> ToolError:
        """Return the error for a missing file, with similar names or the directory that is there instead."""
        if self._is_directory(logical):
            return ToolError(f"{logical!r} is a directory: use list_directory")
        if (other := self._look_alike(logical)) is not None:
            reason = f"there is no {logical!r}, but {other!r}, whose name looks the same"
            return ToolError(f"{reason}: {_compared(logical, other)}")
        above, _, name = logical.rpartition("/")
        doubled = logical.removeprefix(WORKSPACE)
        if doubled.startswith(WORKSPACE + "/") and self._size(doubled) is not None:
            return ToolError(f"there is no {logical!r}, but {doubled!r}: relative paths begin in /workspace")
        names = self._names(above or "/")
        if names is None:
            return ToolError(f"there is no {logical!r}, and no directory {above!r}")
        near = difflib.get_close_matches(name, names[:10_000], n=3, cutoff=0.7)
        return ToolError(f"there is no {logical!r}" + (f"; near it there is {', '.join(near)}" if near else ""))

    def _require_creatable(self, logical: Path) -> None:
        """Raise `ToolError` if a directory has the path, or if something that looks like it has the name."""
        if self._is_directory(logical):
            raise ToolError(f"{logical!r} is a directory")
        if not self._look_alikes and (other := self._look_alike(logical)) is not None:
            raise ToolError(
                f"{logical!r} is not created beside {other!r}, whose name looks the same: {_compared(logical, other)}."
                " Write to that one, or choose another name"
            )

    def _look_alike(self, logical: Path) -> Path | None:
        """Return the path of what only looks like a path, or like a directory above it; None if there is nothing.

        Each component is the exact one, or else one that looks the same.
        """
        path = ""
        for name in logical.split("/")[1:]:
            names = self._names(path or "/") or []
            if name not in names:
                name = next((other for other in names if folded(other) == folded(name)), "")
            if not name:
                break
            path += f"/{name}"
        return None if logical == path or logical.startswith(f"{path}/") else path

    def _names(self, directory: Path) -> list[str] | None:
        """Return the names in a directory; None if there is no such directory for the agent."""
        try:
            return [entry["path"].rpartition("/")[2] for entry in self._handle.scan(directory)]
        except FileSystemError:
            return None


def _named(ignored: Sequence[EntryMeta]) -> str:
    """Return a line that names the files of a directory that git ignores, or some of them."""
    names = ", ".join(entry["path"].rpartition("/")[2] for entry in ignored[:MAX_IGNORED])
    more = f" and {len(ignored) - MAX_IGNORED:,} more" if len(ignored) > MAX_IGNORED else ""
    return f"[git ignores {names}{more}]"


def _compared(logical: Path, other: Path) -> str:
    """Return how the first names differ in which two paths that look the same do."""
    pairs = zip(logical.split("/"), other.split("/"), strict=False)
    yours, theirs = next((mine, its) for mine, its in pairs if mine != its)
    return f"yours is {yours!a}, that one {theirs!a}"
