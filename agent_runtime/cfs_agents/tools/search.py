"""Searches the lines of files for a pattern, within limits that a model can continue behind (A3)."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.paths import PASSED_OVER
from cfs_filesystem import FileSystemError, FsHandle, InvalidArgumentError, NotFoundError, Path

MAX_MATCHES = 200
MAX_SECONDS = 20.0
MAX_FILE_BYTES = 8 << 20
MAX_LINE = 400
_BEFORE_MATCH = 100
"""Characters before a match that are shown of a line that is longer than `MAX_LINE`."""


@dataclass(slots=True)
class SearchMatches:
    """The matching lines that a search has found so far, and the counts of files searched and skipped.

    `passes_over` says whether files that git ignores were not searched. `stopped` says why the search ended early, and
    `next` is the argument that continues it.
    """

    lines: list[str] = field(default_factory=list)
    files: int = 0
    searched: int = 0
    binary: int = 0
    large: int = 0
    shortened: int = 0
    passes_over: bool = False
    stopped: str = ""
    next: str = ""

    @property
    def cut(self) -> bool:
        """Whether matches, or parts of their lines, are left out."""
        return bool(self.stopped or self.shortened)

    def text(self) -> str:
        """Return the findings as text for the model."""
        notes = [f"{len(self.lines)} matching lines in {self.files} of {self.searched} files"]
        if self.stopped:
            going_on = f"go on with after={self.next!r}, or narrow the search by path, glob or pattern"
            notes.append(f"stopped {self.stopped}: {going_on}")
        if self.shortened:
            parts = f"{self.shortened} long lines are shown in part, around the match"
            notes.append(f"{parts}: read on with read_file, start_line=LINE, start_column=COLUMN")
        if self.passes_over and not self.lines:
            notes.append("files that git ignores were not searched: name one, or its directory, as path")
        if self.binary:
            notes.append(f"{self.binary} files are no text")
        if self.large:
            notes.append(f"{self.large} files are larger than {MAX_FILE_BYTES >> 20} MiB")
        return "\n".join([*self.lines, f"[{'; '.join(notes)}]"])


def search(
    handle: FsHandle,
    pattern: str,
    directory: Path,
    glob: str | None,
    *,
    ignore_case: bool,
    after: str | None = None,
    is_ignored: Callable[[Path], bool] | None = None,
) -> SearchMatches:
    """Find the matching lines in a file, or in all files below a directory that are not hidden, of programs or ignored.

    Files are searched in the order of their paths. `after` is `PATH:LINE`: the search begins behind that line. Raises
    `ToolError` for an invalid pattern or one that takes too long (the file system limits the time for each file), and
    `NotFoundError`.
    """
    findings = SearchMatches(passes_over=is_ignored is not None)
    end = time.monotonic() + MAX_SECONDS
    flags = "mi" if ignore_case else "m"
    begin, behind = _position(after)
    for path, size in _files(handle, directory, glob):
        if path < begin:
            continue
        if is_ignored is not None and path != directory and is_ignored(path):
            continue
        if time.monotonic() > end:
            findings.stopped, findings.next = f"after {MAX_SECONDS:g} s", f"{path}:0"
            break
        if size > MAX_FILE_BYTES:
            findings.large += 1
            continue
        matches = _matches(handle, path, pattern, flags, findings)
        if not _add(matches, path, behind if path == begin else 0, findings):
            findings.stopped = f"after {MAX_MATCHES} lines"
            break
    return findings


def _position(after: str | None) -> tuple[Path, int]:
    if after is None:
        return "", 0
    path, _, line = after.rpartition(":")
    if not path or not (line.isascii() and line.isdigit()):
        raise ToolError(f"after must be PATH:LINE, such as /workspace/notes.txt:12, not {after!r}")
    return path, int(line)


def _files(handle: FsHandle, directory: Path, glob: str | None) -> Iterator[tuple[Path, int]]:
    """Yield the paths and sizes of the files to search."""
    inside = directory.rstrip("/") + "/"
    entries = handle.list(directory)
    if not entries and not handle.is_directory(directory):
        raise NotFoundError(f"there is no entry {directory!r}", directory)
    for entry in entries:
        path = entry["path"]
        relative = path.removeprefix(inside)
        parts = () if path == directory else relative.split("/")
        hidden = any(part.startswith(".") or part in PASSED_OVER for part in parts)
        name = relative.rpartition("/")[2]
        if not hidden and (glob is None or fnmatchcase(relative, glob) or fnmatchcase(name, glob)):
            yield path, entry["size"]


def _matches(
    handle: FsHandle, path: Path, pattern: str, flags: str, findings: SearchMatches
) -> list[tuple[int, int, str]]:
    """Return the matching lines of one file: number, column of the match, and text.

    The file system returns the text of matches without their places. So it is asked twice: for the lines, and for the
    rest of the same lines from the match on (`\\K`), which gives the column. The number is that of the next line with
    this text.
    """
    try:
        blocks = handle.read_re(path, rf"(?{flags})^.*?(?:{pattern}).*$")
        rests = handle.read_re(path, rf"(?{flags})^.*?\K(?:{pattern}).*$") if blocks else []
        text = handle.read_file(path) if blocks else ""
    except InvalidArgumentError as error:
        if _is_text(handle, path):
            raise ToolError(f"{error.detail} (in {path})") from None
        findings.binary += 1
        return []
    except FileSystemError:  # deleted meanwhile, or not readable
        return []
    findings.searched += 1
    if len(rests) != len(blocks):  # changed meanwhile
        rests = blocks
    matches: list[tuple[int, int, str]] = []
    number, position = 1, 0
    for block, rest in zip(blocks, rests, strict=True):
        start = _line_start(text, block, position)
        if start is None or (start == len(text) and not text[start - 1 : start].strip("\n")):
            continue  # changed meanwhile, or what is behind the end of the last line
        number += text.count("\n", position, start)
        column = len(block) - len(rest) - block.rfind("\n", 0, len(block) - len(rest))
        for line in block.split("\n"):
            matches.append((number, column, line.rstrip("\r")))
            number, column = number + 1, 1
        position = start + len(block) + 1
    return matches


def _line_start(text: str, block: str, position: int) -> int | None:
    """Return the offset of the next whole lines with this text."""
    while 0 <= position <= len(text):
        start = text.find(block, position)
        if start < 0:
            return None
        end = start + len(block)
        if (start == 0 or text[start - 1] == "\n") and (end == len(text) or text[end] == "\n"):
            return start
        position = text.find("\n", start) + 1 or len(text) + 1
    return None


def _add(matches: list[tuple[int, int, str]], path: Path, behind: int, findings: SearchMatches) -> bool:
    """Add the matching lines of a file behind a line; returns whether there is room for more."""
    before = len(findings.lines)
    for number, column, line in matches:
        if number <= behind:
            continue
        if len(findings.lines) == MAX_MATCHES:
            findings.files += len(findings.lines) > before
            return False
        findings.lines.append(f"{path}:{number}:{column}: {_around(line, column, findings)}")
        findings.next = f"{path}:{number}"
    findings.files += len(findings.lines) > before
    return True


def _around(line: str, column: int, findings: SearchMatches) -> str:
    """Return a line; of a long one the part around the match."""
    if len(line) <= MAX_LINE:
        return line
    findings.shortened += 1
    start = max(0, min(column - 1 - _BEFORE_MATCH, len(line) - MAX_LINE))
    end = start + MAX_LINE
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"


def _is_text(handle: FsHandle, path: Path) -> bool:
    try:
        handle.read_file(path)
    except FileSystemError:
        return False
    return True
