"""The names of versions in the folders of the past: `@00012_2026-11-27T12.00.00Z_alice.py`.

`@12` is enough, and so is a time, as in `@2026-11-27T12:00:00Z`: what follows the number is for people. Names have no
colons, which some programs and systems refuse. Pure: no I/O.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime

_NUMBER = re.compile(r"@([0-9]{1,15})(?:_.*)?", re.DOTALL)
_TIME = re.compile(
    r"@([0-9]{4}-[0-9]{2}-[0-9]{2})(?:T([0-9]{2})[.:]([0-9]{2})(?:[.:]([0-9]{2}))?(Z|[+-][0-9]{2}[.:]?[0-9]{2})?)?"
)
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}$")
_AUTHOR_CHARACTERS = 64


def version_name(number: int, at: float, author: str, file: str = "") -> str:
    """Return the name of a version: its number, time (UTC) and author, and the suffix of the name of a file."""
    time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H.%M.%SZ")
    plain = "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in author)
    while len(plain.encode()) > _AUTHOR_CHARACTERS:
        plain = plain[:-1]
    suffix = _SUFFIX.search(file)
    return f"@{number:05}_{time}_{plain}{suffix[0] if suffix else ''}"


def moment_of(name: str) -> int | datetime | None:
    """Return the number or time that a name stands for; None if it is no name of a version."""
    if (number := _NUMBER.fullmatch(name)) is not None:
        return int(number[1])
    if (match := _TIME.fullmatch(name)) is None:
        return None
    day, hour, minute, second, zone = match.groups()
    clock = "" if hour is None else f"T{hour}:{minute}:{second or '00'}{(zone or 'Z').replace('.', ':')}"
    with suppress(ValueError):
        time = datetime.fromisoformat(day + clock)
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return None
