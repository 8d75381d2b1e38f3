"""Tools for files: read, write, edit, list, search (A2, A3). All goes through a handle, which is the gate (G1)."""

import difflib
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from cfs_agents.tools.registry import Tool, ToolError, Touch, tool
from cfs_filesystem import (
    OPERATIONS,
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    FsHandle,
    Grant,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    Operation,
    Path,
    validate_path,
)

# From the paths that a model writes to logical paths (A2), and from names on disk to text. Pure: no I/O.
#
# The agent sees `/`, which is its own directory; what is relative is relative to `/workspace`. Nothing is repaired:
# what the gate takes for no path (`..`, `//`, `*`, control characters) is refused with its reason, wherever it would
# lead.
#
# A name on disk is bytes. Inside the runtime it is a string as `os.fsdecode` makes it; `escaped_name` makes text of it.

WORKSPACE = "/workspace"
STORAGE = "/storage"
GUIDELINE = "/guideline.md"
CONTEXT_WINDOW = "/context_window_main.md"

_UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\\\\"  # control characters, and the backslash that escapes them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, marks that turn the direction of writing
    "\ud800-\udfff]"  # bytes that are not UTF-8
)
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")

_LOOK: frozenset[Operation] = OPERATIONS - {"write", "delete"}


def agent_grants(context_window: str = CONTEXT_WINDOW) -> list[Grant]:
    """Return what an agent may do in its directory: everything in its two folders, and read its rules and its memory.

    `context_window` is the logical path of the file that holds its memory.
    """
    return [
        Grant(prefix=WORKSPACE, ops=OPERATIONS),
        Grant(prefix=STORAGE, ops=OPERATIONS),
        Grant(prefix=GUIDELINE, ops=_LOOK),
        Grant(prefix=context_window, ops=_LOOK),
    ]


def file_path(path: str) -> Path:
    """Return the logical path of a file; raises `ToolError` with the reason for what is no path."""
    if not path:
        raise ToolError("the path is empty")
    return _checked(path if path.startswith("/") else f"{WORKSPACE}/{_bare(path)}", path)


def directory_path(path: str) -> Path:
    """Return the logical path of a directory; `.`, `/` and a slash at the end are allowed here."""
    if path in ("", "."):
        return WORKSPACE
    if path == "/":
        return path
    inner = path.removesuffix("/")
    if inner == ".":
        return WORKSPACE
    return _checked(inner if path.startswith("/") else f"{WORKSPACE}/{_bare(inner)}", path)


class PathManager:
    """Maps between the paths that an agent writes and the places on this machine.

    `project_root` is the directory that is `/` to the agent, `workspace` the one that is `/workspace`, if it is
    another than the folder of that name.
    """

    def __init__(self, project_root: str | os.PathLike[str], workspace: pathlib.Path | None = None) -> None:
        self.root = pathlib.Path(project_root).absolute()
        self.workspace = workspace or self.root / WORKSPACE[1:]

    def resolve_agent_path(self, path: str) -> pathlib.Path:
        """Return the place of an agent's path; a relative path is relative to `/workspace`.

        Raises `ToolError` with the reason for what is not a path (`..`, control characters), and for a path that leads
        out of the agent's directories through a link.
        """
        place = self.place_of(directory_path(path))
        real = pathlib.Path(os.path.realpath(place))
        if not any(real.is_relative_to(os.path.realpath(each)) for each in (self.root, self.workspace)):
            raise ToolError(f"{path!r} leads out of your directory")
        return place

    def place_of(self, logical: Path) -> pathlib.Path:
        """Return the place of a logical path."""
        if logical == WORKSPACE or logical.startswith(f"{WORKSPACE}/"):
            return self.workspace / logical.removeprefix(WORKSPACE).removeprefix("/")
        return self.root / logical.removeprefix("/")

    def agent_path(self, place: pathlib.Path) -> str:
        """Return the path by which the agent knows a place; one outside of its directories keeps its own."""
        if place.is_relative_to(self.workspace):
            return f"{WORKSPACE}/{place.relative_to(self.workspace).as_posix()}"
        return f"/{place.relative_to(self.root).as_posix()}" if place.is_relative_to(self.root) else str(place)


def _bare(path: str) -> str:
    """Drop each `./` at the beginning."""
    while path.startswith("./"):
        path = path[2:]
    return path


def _checked(logical: str, given: str) -> Path:
    try:
        return validate_path(logical)
    except InvalidPathError as error:
        hint = ": '..' is never followed, write the path from /workspace on" if ".." in given.split("/") else ""
        raise ToolError(f"{error.detail}{hint}") from None


def escaped_name(name: str) -> str:
    """Return a file name or path as valid text on one line: bytes that cannot be shown as `\\xff`, as bash's `$'...'`.

    Different names stay different: a backslash is escaped, too. `unescaped_name` is the way back.
    """
    return _UNSHOWABLE.sub(_escaped, name)


def unescaped_name(text: str) -> str:
    """Return the file name, as `os.fsdecode` makes it, that `escaped_name` wrote like this."""
    data = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), text.encode("utf-8", "surrogateescape"))
    return data.decode("utf-8", "surrogateescape")


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))


# A regular expression over the text files below a directory (A3).

MOST_MATCHES = 200
MOST_SECONDS = 20.0
LARGEST_SEARCHED = 8 << 20
LONGEST_LINE = 400


@dataclass(slots=True)
class Findings:
    """What a search has found so far, and what it has left out."""

    lines: list[str] = field(default_factory=list)
    files: int = 0
    searched: int = 0
    binary: int = 0
    large: int = 0
    stopped: str = ""

    def text(self) -> str:
        """Write it for a model."""
        notes = [f"{len(self.lines)} matching lines in {self.files} of {self.searched} files"]
        if self.stopped:
            notes.append(f"stopped {self.stopped}: narrow the search by path, glob or pattern")
        if self.binary:
            notes.append(f"{self.binary} files are no text")
        if self.large:
            notes.append(f"{self.large} files are larger than {LARGEST_SEARCHED >> 20} MiB")
        return "\n".join([*self.lines, f"[{'; '.join(notes)}]"])


def search(handle: FsHandle, pattern: str, place: Path, glob: str | None, *, ignore_case: bool) -> Findings:
    """Find the lines that match in a file, or in all below a directory but for what is hidden in it.

    Raises `ToolError` for a pattern that is none or takes too long (the file system bounds each file's search), and
    `NotFoundError`.
    """
    found = Findings()
    end = time.monotonic() + MOST_SECONDS
    wrapped = f"(?m{'i' if ignore_case else ''})^.*?(?:{pattern}).*$"
    for path, size in _files(handle, place, glob):
        if time.monotonic() > end:
            found.stopped = f"after {MOST_SECONDS:g} s"
            break
        if size > LARGEST_SEARCHED:
            found.large += 1
            continue
        if not _search_file(handle, path, wrapped, found):
            found.stopped = f"after {MOST_MATCHES} lines"
            break
    return found


def _files(handle: FsHandle, place: Path, glob: str | None) -> Iterator[tuple[Path, int]]:
    """Name the files to be searched, and their sizes."""
    inside = place.rstrip("/") + "/"
    entries = handle.list(place)
    if not entries and not handle.is_directory(place):
        raise NotFoundError(f"there is no entry {place!r}", place)
    for entry in entries:
        path = entry["path"]
        relative = path.removeprefix(inside)
        hidden = path != place and any(part.startswith(".") for part in relative.split("/"))
        name = relative.rpartition("/")[2]
        if not hidden and (glob is None or fnmatchcase(relative, glob) or fnmatchcase(name, glob)):
            yield path, entry["size"]


def _search_file(handle: FsHandle, path: Path, wrapped: str, found: Findings) -> bool:
    """Add the matching lines of one file; tells whether there is room for more.

    The file system says which lines match, but not where they are. So they are looked up: lines of the same text match
    the same.
    """
    try:
        matches = handle.read_re(path, wrapped)
        text = handle.read_file(path) if matches else ""
    except InvalidArgumentError as error:
        if _is_text(handle, path):
            raise ToolError(f"{error.detail} (in {path})") from None
        found.binary += 1
        return True
    except FileSystemError:  # gone by now, or not to be read
        return True
    found.searched += 1
    if not matches:
        return True
    wanted = {line for match in matches for line in match.split("\n")}
    before = len(found.lines)
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        if line in wanted:
            if len(found.lines) == MOST_MATCHES:
                return False
            shown = line.rstrip("\r")
            shown = shown if len(shown) <= LONGEST_LINE else shown[:LONGEST_LINE] + "..."
            found.lines.append(f"{path}:{number}: {shown}")
    found.files += len(found.lines) > before
    return True


def _is_text(handle: FsHandle, path: Path) -> bool:
    try:
        handle.read_file(path)
    except FileSystemError:
        return False
    return True


# Exact replacement in a text. Pure: no I/O.

_MOST_PLACES = 10


def replaced(path: str, text: str, old: str, new: str) -> tuple[str, int]:
    """Replace the one place where `old` stands; returns the new text and the number of its first line there.

    Raises `ToolError` when there is none, or more than one, saying where; `path` is for the reason only.
    """
    if not old:
        raise ToolError("'old' is empty: give the text that is to be replaced")
    if old == new:
        raise ToolError("'old' and 'new' are the same: nothing would change")
    places = _places(text, old)
    if not places:
        raise ToolError(f"'old' is not in {path!r}{_near(text, old)}; nothing was changed")
    if len(places) > 1:
        lines = ", ".join(str(_line(text, place)) for place in places[:_MOST_PLACES])
        more = ", ..." if len(places) > _MOST_PLACES else ""
        raise ToolError(
            f"'old' is {len(places)} times in {path!r}, at the lines {lines}{more}; nothing was changed:"
            " give more of the text around the place that is meant"
        )
    start = places[0]
    return text[:start] + new + text[start + len(old) :], _line(text, start)


def _places(text: str, old: str) -> list[int]:
    """Find every place where it stands; places may overlap, as each of them could be meant."""
    places: list[int] = []
    start = text.find(old)
    while start >= 0:
        places.append(start)
        start = text.find(old, start + 1)
    return places


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _near(text: str, old: str) -> str:
    """Say where it nearly stands: but for white space, or for the ends of lines."""
    if "\r\n" in text and old.replace("\n", "\r\n") in text:
        return ": the file's lines end in '\\r\\n'"
    wanted = [line.strip() for line in old.strip().splitlines()]
    lines = [line.strip() for line in text.splitlines()]
    for at in range(len(lines) - len(wanted) + 1) if wanted else ():
        if lines[at : at + len(wanted)] == wanted:
            return f": it is at line {at + 1} but for white space, copy the text exactly"
    return ""


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


READ_FILE, WRITE_FILE, EDIT_FILE = "read_file", "write_file", "edit_file"
LIST_DIRECTORY, SEARCH_FILES = "list_directory", "search_files"
"""Names of the tools."""


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
            tool("Read a text file, or some of its lines.", name=READ_FILE, touches=_reads)(self.read_file),
            tool("Write a whole text file; makes directories above it.", name=WRITE_FILE, touches=_writes)(
                self.write_file
            ),
            tool("Replace a text that stands just once in a file.", name=EDIT_FILE, touches=_writes)(self.edit_file),
            tool("List a directory.", name=LIST_DIRECTORY, touches=_looks)(self.list_directory),
            tool(
                "Search the lines of text files, except hidden ones, for a regular expression; gives path:line: text.",
                name=SEARCH_FILES,
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
