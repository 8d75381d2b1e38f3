"""Finds the version that brought each line of a text, as `git blame` does. Pure: no I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Generic, TypeVar

V = TypeVar("V")

_LOOKED_AT = 8000
"""Bytes at the beginning of a content that decide whether it is text; git looks at as many."""


def is_binary(content: bytes) -> bool:
    """Return whether a content is no text: it has a NUL byte near its beginning."""
    return b"\0" in content[:_LOOKED_AT]


@dataclass(frozen=True, slots=True)
class BlamedLine(Generic[V]):
    """A line, the version that brought it, and its number in the content of that version, from 0."""

    version: V
    number: int
    text: bytes


def blame(versions: Iterable[tuple[V, bytes]]) -> list[BlamedLine[V]]:
    """Return each line of the newest content with the version that brought it.

    `versions` are the contents, the newest first, each with what names it. They are read only until each line has its
    version. A line ends with a newline and has it, except perhaps the last one.
    """
    remaining = iter(versions)
    version, content = next(remaining)
    text = newer = split(content)
    origins = [(version, number) for number in range(len(text))]
    lines = {number: number for number in range(len(text))}  # from those of `newer` to those of `text`
    for version, content in remaining:
        older = split(content)
        lines = {old: lines[new] for old, new in unchanged(older, newer) if new in lines}
        for old, number in lines.items():
            origins[number] = version, old
        if not lines:
            break
        newer = older
    return [BlamedLine(version, number, line) for (version, number), line in zip(origins, text, strict=True)]


def split(content: bytes) -> list[bytes]:
    """Return the lines of a content. Only a newline ends one."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def unchanged(old: Sequence[bytes], new: Sequence[bytes]) -> Iterable[tuple[int, int]]:
    """Yield the numbers of the lines that stay, in the old text and in the new one."""
    for old_first, new_first, size in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        for offset in range(size):
            yield old_first + offset, new_first + offset
