"""Byte ranges (RFC 9110, 14). One range is supported; a request for several gets the whole content."""

import re

from cfs.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)


def part_of(header: str | None, size: int) -> range | None:
    """Return the requested range of `size` bytes; None for all bytes.

    Raises `RangeNotSatisfiable` if the range is empty. An invalid header is ignored.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        if size == 0 and int(suffix) > 0:
            return None  # an empty content has no last bytes: no error, and no valid range
        part = range(max(0, size - int(suffix)), size)
    else:
        part = range(int(first), min(size, int(last) + 1) if last else size)
        if last and int(last) < int(first):
            return None  # invalid: ignored
    if not part:
        raise RangeNotSatisfiable(f"there are {size} bytes; {header!r} asks for none of them")
    return part
