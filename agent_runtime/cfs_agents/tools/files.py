"""Tools for files: read, write, edit, list, search (A2, A3). All goes through a handle, which is the gate (G1)."""

import difflib
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from cfs_agents.tools.editing import replaced
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.paths import WORKSPACE, directory_path, file_path
from cfs_agents.tools.search import search
from cfs_agents.tools.tool import Tool, Touch, tool
from cfs_filesystem import (
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    FsHandle,
    InvalidArgumentError,
    NotFoundError,
    Path,
)

_T = TypeVar("_T")

MOST_LINES = 2_000
MOST_CHARACTERS = 60_000
MOST_ENTRIES = 500
LARGEST_FILE = 16 << 20

_File = Annotated[str, "absolute, or relative to /workspace"]


class FileGate(Protocol):
    """Looks at what file tools do, where several agents share the files."""

    def seen(self, path: Path) -> None:
        """A file is about to be read."""
        ...

    def writing(self, path: Path, *, whole: bool) -> AbstractContextManager[None]:
        """Hold off others while a file is written; `whole` without looking at what is in it.

        Raises `ToolError` where that may not be.
        """
        ...


class OpenGate:
    """Lets everything through."""

    def seen(self, path: Path) -> None:
        """Do nothing."""

    def writing(self, path: Path, *, whole: bool) -> AbstractContextManager[None]:  # noqa: ARG002 - the protocol's
        """Hold off nobody."""
        return nullcontext()


def _reads(arguments: Mapping[str, Any]) -> Touch:
    return Touch(file_path(arguments["path"]), writes=False)


def _writes(arguments: Mapping[str, Any]) -> Touch:
    return Touch(file_path(arguments["path"]), writes=True)


def _looks(arguments: Mapping[str, Any]) -> Touch:
    return Touch(directory_path(arguments.get("path", WORKSPACE)), writes=False)


class FileTools:
    """The file tools of one agent, by its handle, whose `/` is the agent's own directory. Any number of threads.

    `gate` is asked before files are read and written.
    """

    def __init__(self, handle: FsHandle, gate: FileGate | None = None) -> None:
        self._handle = handle
        self._gate = gate or OpenGate()
        self._changing = threading.Lock()

    def tools(self) -> list[Tool]:
        """Return all of them."""
        return [
            tool("Read a text file, or some of its lines.", touches=_reads)(self.read_file),
            tool("Write a whole text file; makes directories above it.", touches=_writes)(self.write_file),
            tool("Replace a text that stands just once in a file.", touches=_writes)(self.edit_file),
            tool("List a directory.", touches=_looks)(self.list_directory),
            tool(
                "Search the lines of text files, except hidden ones, for a regular expression; gives path:line: text.",
                touches=_looks,
            )(self.search_files),
        ]

    def read_file(
        self,
        path: _File,
        start_line: Annotated[int | None, Field(ge=1, description="first line, from 1")] = None,
        end_line: Annotated[int | None, Field(ge=1, description="last line, included")] = None,
    ) -> str:
        """Return the text, or the lines asked for with a note which of how many they are."""
        place = file_path(path)
        self._gate.seen(place)
        text = self._looking(place, lambda: self._text(place))
        *ended, rest = text.split("\n")
        lines = [f"{line}\n" for line in ended] + ([rest] if rest else [])
        if not lines:
            return "[the file is empty]"
        first, last = start_line or 1, min(end_line or len(lines), len(lines))
        if first > len(lines):
            raise ToolError(f"{place!r} has no line {first}: it has {len(lines)} lines")
        if last < first:
            raise ToolError(f"end_line {end_line} is before start_line {first}")
        return _cut(lines, first, last, whole=start_line is None and end_line is None)

    def write_file(self, path: _File, content: str) -> str:
        """Store a text, all of it or nothing; return what was done."""
        place = file_path(path)
        with self._changing, self._gate.writing(place, whole=True):
            before = self._size(place)
            if before is None and self._is_directory(place):
                raise ToolError(f"{place!r} is a directory")
            size = self._looking(place, lambda: self._handle.write(place, content))["size"]
        lines = content.count("\n") + (not content.endswith("\n") and content != "")
        done = f"created {place}" if before is None else f"changed {place}, which had {before:,} bytes"
        return f"{done}: {lines:,} lines, {size:,} bytes"

    def edit_file(
        self,
        path: _File,
        old: Annotated[str, "exactly as in the file, and enough of it to be unique"],
        new: str,
    ) -> str:
        """Replace one place; nothing is written when there is none, or more than one."""
        place = file_path(path)
        with self._changing, self._gate.writing(place, whole=False):
            text, line = replaced(place, self._looking(place, lambda: self._text(place)), old, new)
            self._looking(place, lambda: self._handle.write(place, text))
        return f"changed {place} at line {line}: {len(old):,} characters replaced by {len(new):,}"

    def list_directory(self, path: Annotated[str, "absolute, or relative to /workspace"] = WORKSPACE) -> str:
        """Return the directories and files that are directly in it, sorted, with sizes in bytes."""
        place = directory_path(path)
        try:
            entries = self._handle.scan(place)
        except NotFoundError:
            if self._size(place) is not None:
                raise ToolError(f"{place!r} is a file: use read_file") from None
            raise self._missing(place) from None
        lines = [
            f"{entry['path'].rpartition('/')[2]}/"
            if "directory" in entry
            else f"{entry['path'].rpartition('/')[2]} ({entry['size']:,} bytes)"
            for entry in entries
        ]
        directories = sum("directory" in entry for entry in entries)
        more = [f"[... {len(lines) - MOST_ENTRIES:,} more]"] if len(lines) > MOST_ENTRIES else []
        title = f"{place}: {directories} directories, {len(entries) - directories} files"
        return "\n".join([title, *lines[:MOST_ENTRIES], *more])

    def search_files(
        self,
        pattern: str,
        path: Annotated[str, "file or directory"] = WORKSPACE,
        glob: Annotated[str | None, "such as *.py"] = None,
        ignore_case: bool = False,
    ) -> str:
        """Return the matching lines, some at most, and how many files were searched."""
        place = directory_path(path)
        return self._looking(place, lambda: search(self._handle, pattern, place, glob, ignore_case=ignore_case)).text()

    # -- looking --------------------------------------------------------------------------------------------------

    def _text(self, place: Path) -> str:
        size = self._handle.file(place)["size"]
        if size > LARGEST_FILE:
            raise ToolError(f"{place!r} has {size:,} bytes, which is too much: read a part of it with a command")
        try:
            return self._handle.read_file(place)
        except InvalidArgumentError as error:
            raise ToolError(
                f"{error.detail.partition(';')[0]}: it has {size:,} bytes, look at it by a command"
            ) from None

    def _size(self, place: Path) -> int | None:
        """Return the size of a file, or None where there is none, or none that may be looked at."""
        try:
            return self._handle.file(place)["size"]
        except FileSystemError:
            return None

    def _looking(self, place: Path, action: Callable[[], _T]) -> _T:
        """Do something with a file, and say it well when it is not there, or is a directory."""
        try:
            return action()
        except NotFoundError:
            raise self._missing(place) from None
        except AccessDeniedError as error:
            raise ToolError(f"{error.detail}. {self._handle.describe_grants()}") from None
        except ConflictError as error:
            if self._is_directory(place):
                raise ToolError(f"{place!r} is a directory") from None
            raise ToolError(error.detail) from None

    def _is_directory(self, place: Path) -> bool:
        try:
            return self._handle.is_directory(place)
        except FileSystemError:
            return False

    def _missing(self, place: Path) -> ToolError:
        """Say that there is nothing, and what there is instead."""
        if self._is_directory(place):
            return ToolError(f"{place!r} is a directory: use list_directory")
        above, _, name = place.rpartition("/")
        doubled = place.removeprefix(WORKSPACE)
        if doubled.startswith(WORKSPACE + "/") and self._size(doubled) is not None:
            return ToolError(f"there is no {place!r}, but {doubled!r}: relative paths begin in /workspace")
        try:
            names = [entry["path"].rpartition("/")[2] for entry in self._handle.scan(above or "/")]
        except FileSystemError:
            return ToolError(f"there is no {place!r}, and no directory {above!r}")
        near = difflib.get_close_matches(name, names[:10_000], n=3, cutoff=0.7)
        return ToolError(f"there is no {place!r}" + (f"; near it there is {', '.join(near)}" if near else ""))


def _cut(lines: list[str], first: int, last: int, *, whole: bool) -> str:
    """Join the lines from first to last, as many as fit, and note what they are when they are not all."""
    room, shown = MOST_CHARACTERS, first - 1
    while shown < last and shown - first + 1 < MOST_LINES and len(lines[shown]) <= room:
        room -= len(lines[shown])
        shown += 1
    text = "".join(lines[first - 1 : shown])
    if shown == last and whole:
        return text
    if shown == first - 1:  # not even one line fits
        line = lines[first - 1]
        note = f"[the first {MOST_CHARACTERS:,} of {len(line):,} characters of line {first} of {len(lines)}]"
        return f"{line[:MOST_CHARACTERS]}\n{note}"
    more = "" if shown == last else f"; go on with start_line={shown + 1}"
    ending = "" if text.endswith("\n") else "\n"
    return f"{text}{ending}[lines {first}-{shown} of {len(lines)}{more}]"
