"""Finds lines and pattern matches in a text, and limits the cost of hostile patterns (G3).

Only "\\n" ends a line. "\\r", form feeds and U+2028 are part of a line, as in `grep` and `sed`.
"""

import re
import time
from collections.abc import Iterator

import regex

from cfs_filesystem._errors import InvalidArgumentError, NotFoundError
from cfs_filesystem._types import Path

MAX_OVERLAPPING = 4_194_304
MAX_PATTERN = 4_096
MAX_COMPILED = 250_000

_COUNT = re.compile(r"\{\s*([0-9]+)")
_CALL = re.compile(r"\(\?(?:R|&|P>|[+-]?[0-9])")


def decoded(path: Path, data: bytes) -> str:
    """Decode the content of an entry; raise `InvalidArgumentError` where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        reason = f"{path!r} is not UTF-8 text (byte {error.start}); use read_binary"
        raise InvalidArgumentError(reason, path) from None


def lines_of(path: Path, text: str, index: int | None, line: int | None) -> str:
    """Return `line` lines, starting at line `index`; fewer if the text ends before that.

    Raises `NotFoundError` if line `index` is past the end. Line 0 of an empty text is empty.
    """
    if index is None and line is None:
        return text
    first = index or 0
    start = 0
    for passed in range(first):
        start = text.find("\n", start) + 1
        if start in (0, len(text)):
            raise NotFoundError(f"{path!r} has no line {first}: it has {passed + bool(text)}, counted from 0", path)
    if line is None:
        return text[start:]
    end = start
    for _ in range(line):
        end = text.find("\n", end) + 1
        if end == 0:
            return text[start:]
    return text[start:end]


def matches_of(text: str, pattern: str, overlap: int | None, seconds: float) -> list[str]:
    """Return the text of every match, in order.

    Matches do not overlap by default. `overlap` is the number of characters that a match may share with the previous
    one: "aa" is found twice in "aaa" with an overlap of 1. Raises `InvalidArgumentError` for a pattern that is
    malformed or too costly, and if overlapping matches have more than `MAX_OVERLAPPING` characters in total.

    The `regex` package checks a deadline in its inner loop. So a catastrophic pattern stops in time without a separate
    process, and other threads can run meanwhile. The deadline is in processor time. `regex` limits neither compiling
    nor recursion; `_require_cheap` does.
    """
    compiled = _compiled(pattern)
    if overlap and compiled.flags & regex.REVERSE:
        raise InvalidArgumentError("a pattern that searches backwards, (?r), has no overlapping matches")
    deadline = time.monotonic() + seconds
    scan = _overlapping(text, compiled, overlap, deadline) if overlap else _apart(text, compiled, deadline)
    try:
        return list(scan)
    except (TimeoutError, MemoryError, RecursionError):
        raise InvalidArgumentError(
            f"the pattern was given up: it takes more than {seconds:g} s of processor time or too much memory; "
            "avoid nested repeats such as (a+)+"
        ) from None


def _apart(text: str, compiled: "regex.Pattern[str]", deadline: float) -> Iterator[str]:
    for match in compiled.finditer(text, timeout=_left(deadline)):
        yield match[0]
        _left(deadline)


def _overlapping(text: str, compiled: "regex.Pattern[str]", overlap: int, deadline: float) -> Iterator[str]:
    """Restart the search `overlap` characters before the end of each match, but always after its start."""
    start, length = 0, 0
    while start <= len(text) and (match := compiled.search(text, start, timeout=_left(deadline))):
        length += len(match[0])
        if length > MAX_OVERLAPPING:
            raise InvalidArgumentError(
                f"the overlapping matches have more than {MAX_OVERLAPPING} characters; use a smaller overlap"
            )
        yield match[0]
        start = max(match.start() + 1, match.end() - overlap)


def _left(deadline: float) -> float:
    """The seconds until a deadline; raises `TimeoutError` when it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _compiled(pattern: str) -> "regex.Pattern[str]":
    _require_cheap(pattern)
    try:
        return regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(f"not a regular expression: {error}") from None


def _require_cheap(pattern: str) -> None:
    """Refuse patterns that are expensive to compile.

    The compiler expands counted repeats, and nested ones multiply: `((a{1000}){1000}){1000}` would take all memory. The
    limit needs no parser: only a count after the first ")" can repeat a group, so those counts are multiplied and the
    others added. The estimate is never too low.
    """
    if len(pattern) > MAX_PATTERN:
        raise InvalidArgumentError(f"the pattern has {len(pattern)} characters; {MAX_PATTERN} are allowed")
    if _CALL.search(pattern):
        raise InvalidArgumentError("the pattern calls itself; recursive patterns are not supported")
    group = pattern.find(")") if ")" in pattern else len(pattern)
    size = len(pattern) + sum(int(count[1][:9]) for count in _COUNT.finditer(pattern, 0, group))
    for count in _COUNT.finditer(pattern, group):
        size *= max(1, int(count[1][:9]))
        if size > MAX_COMPILED:
            break
    if size > MAX_COMPILED:
        raise InvalidArgumentError("the counted repeats of the pattern are too many or too large")
