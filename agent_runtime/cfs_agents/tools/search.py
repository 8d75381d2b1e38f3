"""A regular expression over the text files below a directory (A3)."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cfs_agents.tools.errors import ToolError
from cfs_filesystem import FileSystemError, FsHandle, InvalidArgumentError, NotFoundError, Path

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
