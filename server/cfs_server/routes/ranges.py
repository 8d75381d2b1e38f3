"""A part of a content (RFC 9110, 14): one range of bytes; several at once are answered by the whole."""

import re

from cfs.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)


def part_of(header: str | None, size: int) -> range | None:
    """Return which of `size` bytes are asked for; None for all of them.

    Raises `RangeNotSatisfiable` where there are none. What is no range of bytes is as if it were not there.
    """
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        if size == 0 and int(suffix) > 0:
            return None  # the last bytes of nothing are nothing: no error, and no range that could be named
        part = range(max(0, size - int(suffix)), size)
    else:
        part = range(int(first), min(size, int(last) + 1) if last else size)
        if last and int(last) < int(first):
            return None  # not a valid range: ignored
    if not part:
        raise RangeNotSatisfiable(f"there are {size} bytes; {header!r} asks for none of them")
    return part
