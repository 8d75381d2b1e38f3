"""Pages of a long text: a part that a model can read at once, and the arguments that continue it (A3). No I/O."""

from dataclasses import dataclass

from cfs_agents.tools.errors import ToolError

MAX_LINES = 2_000
MAX_CHARACTERS = 60_000


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a text: as the model gets it, with a note unless it is the whole, and the offsets of its characters.

    It is `cut` if it is less than what was requested.
    """

    text: str
    start: int
    end: int
    cut: bool


def page_of(
    path: str, text: str, start_line: int | None = None, end_line: int | None = None, start_column: int | None = None
) -> Page:
    """Return the requested lines of a text that is not empty, or as much of them as fits on a page.

    A page has whole lines, except where a single line is longer than a page. Lines and columns count from 1. Raises
    `ToolError` for a place that is not in the text; `path` is for the error only.
    """
    *ended, rest = text.split("\n")
    lines = [f"{line}\n" for line in ended] + ([rest] if rest else [])
    first, column, last = start_line or 1, start_column or 1, min(end_line or len(lines), len(lines))
    if first > len(lines):
        raise ToolError(f"{path!r} has no line {first}: it has {len(lines)} lines")
    if last < first:
        raise ToolError(f"end_line {end_line} is before start_line {first}")
    size = _length(lines[first - 1])
    if column > max(size, 1):
        raise ToolError(f"line {first} of {path!r} has no character {column}: it has {size:,} characters")
    start = sum(map(len, lines[: first - 1])) + column - 1
    begun = lines[first - 1][column - 1 :]
    if _length(begun) > MAX_CHARACTERS:
        end = start + MAX_CHARACTERS
        until = column - 1 + MAX_CHARACTERS
        going_on = _arguments(first, until + 1, end_line)
        note = f"[line {first} of {len(lines)}, characters {column:,}-{until:,} of {size:,}; {going_on}]"
        return Page(f"{text[start:end]}\n{note}", start, end, cut=True)
    last_line, end = first, start + len(begun)
    while (
        last_line < last
        and last_line - first + 1 < MAX_LINES
        and end + _length(lines[last_line]) - start <= MAX_CHARACTERS
    ):
        end += len(lines[last_line])
        last_line += 1
    part = text[start:end]
    if len(part) == len(text) and start_line is None and end_line is None:
        return Page(part, start, end, cut=False)
    where = f"lines {first}-{last_line} of {len(lines)}"
    if column > 1:
        where = f"line {first} of {len(lines)} from character {column:,} on"
        where += f", lines {first + 1}-{last_line}" if last_line > first else ""
    more = "" if last_line == last else f"; {_arguments(last_line + 1, 1, end_line)}"
    ending = "" if part.endswith("\n") else "\n"
    return Page(f"{part}{ending}[{where}{more}]", start, end, cut=last_line < last)


def _length(line: str) -> int:
    return len(line) - line.endswith("\n")


def _arguments(line: int, column: int, end_line: int | None) -> str:
    within = f", start_column={column}" if column > 1 else ""
    until = "" if end_line is None else f", end_line={end_line}"
    return f"go on with start_line={line}{within}{until}"
