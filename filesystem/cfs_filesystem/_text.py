"""Lines and matches of a text, with bounds on what a hostile pattern can cost (G3).

A line ends with "\\n" and nothing else: "\\r", form feeds and U+2028 are part of it, as for `grep` and `sed`.
"""

import re
import time
from collections.abc import Iterator

import regex

from cfs_filesystem._errors import InvalidArgumentError, NotFoundError
from cfs_filesystem._types import Path

WINDOW = 65_536
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
    """Return `line` lines from number `index` on, as stored; fewer where the text ends before that.

    Raises `NotFoundError` when the first of them is past the end. Line 0 of an empty text is empty.
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
    """Return the text of every match, in order, none twice.

    Without `overlap` the text is searched as a whole. With it, in windows of `WINDOW` characters that overlap by so
    many: work on each is bounded, and every match (with what it looks ahead to) of up to `overlap` characters is found
    as in a search of the whole; a longer one may be cut. Raises `InvalidArgumentError` for a pattern that is malformed
    or too costly.

    Why the `regex` package and not a process: its matcher looks at the clock in its inner loop, so a catastrophic
    pattern ends in time, without a fork of a threaded server and without copying the text; it also lets other threads
    run meanwhile. That clock is the processor's: on a busy machine the wait is longer, the work is not. What it does
    not bound, compiling and recursion, is bounded before (`_require_cheap`).
    """
    compiled = _compiled(pattern)
    deadline = time.monotonic() + seconds
    try:
        return list(_scan(text, compiled, len(text) + 1 if overlap is None else WINDOW, overlap or 0, deadline))
    except (TimeoutError, MemoryError, RecursionError):
        raise InvalidArgumentError(
            f"the pattern was given up: it takes more than {seconds:g} s of processor time or too much memory; "
            "avoid nested repeats such as (a+)+"
        ) from None


def _scan(text: str, compiled: "regex.Pattern[str]", step: int, overlap: int, deadline: float) -> Iterator[str]:
    """Search window by window: a match belongs to the window in whose first `step` characters it starts."""
    start = 0
    while start <= len(text):
        limit = start + step
        end = min(len(text), limit + overlap)  # the matcher takes no number that is much larger
        for match in compiled.finditer(text, start, end, timeout=_left(deadline)):
            if match.start() >= limit:
                break
            yield match[0]
            start = match.end()
            _left(deadline)
        start = max(start, limit)  # `limit` is always ahead: the loop ends


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
    """Refuse what would cost much before the first character is looked at.

    The compiler writes out counted repeats, and nested ones multiply: `((a{1000}){1000}){1000}` would take all memory.
    The bound needs no parser: only a count after the first ")" can repeat a group, so those are multiplied and the
    others added. That never guesses too low.
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
