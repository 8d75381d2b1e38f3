"""What an agent has read of a file: exactly the ranges of text that it saw, also after the file has changed (B7)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cfs_filesystem import Path

Span = tuple[int, int]
"""A range of characters: the offsets of its first one and of the one behind its last."""

_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class _Part:
    """A text that was seen, and the number of characters before and behind it at that time."""

    text: str
    before: int
    behind: int

    def spans_in(self, text: str) -> Iterator[Span]:
        """Yield where the part is in the present text: from the same place on, or to the same place from the end.

        If the part itself has changed, its unchanged lines at both of its ends count.
        """
        start, size = self.before, len(self.text)
        end = len(text) - self.behind
        for first in (start, end - size):
            if first >= 0 and text.startswith(self.text, first):
                yield first, first + size
                return
        head = self.text.rfind("\n", 0, _common(self.text, text[start : start + size])) + 1
        if head:
            yield start, start + head
        room = min(size - head, end - start - head)
        if room > 0:
            same = _common(self.text[size - room :][::-1], text[end - room : end][::-1])
            line = self.text.find("\n", size - same) + 1
            if 0 < line < size:
                yield end - size + line, end


class ReadRanges:
    """The parts of one file that an agent has seen or written. No I/O."""

    def __init__(self) -> None:
        self._parts: tuple[_Part, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything of the file was seen."""
        return bool(self._parts)

    def add(self, text: str, start: int, end: int) -> None:
        """Add a range of the present text."""
        self._keep(text, [*self._spans(text), (start, end)])

    def edited(self, before: str, after: str, start: int, end: int) -> None:
        """Follow an edit of the agent: it replaced the range of the text `before`, which made the text `after`."""
        shift = len(after) - len(before)
        spans = [(start, end + shift)]
        for first, last in self._spans(before):
            if first < start:
                spans.append((first, min(last, start)))
            if last > end:
                spans.append((max(first, end) + shift, last + shift))
        self._keep(after, spans)

    def gaps(self, text: str) -> list[Span]:
        """Return the ranges of the present text that were not seen."""
        gaps: list[Span] = []
        position = 0
        for start, end in [*self._spans(text), (len(text), len(text))]:
            if start > position:
                gaps.append((position, start))
            position = max(position, end)
        return gaps

    def _spans(self, text: str) -> list[Span]:
        return _merged(span for part in self._parts for span in part.spans_in(text))

    def _keep(self, text: str, spans: Iterable[Span]) -> None:
        self._parts = tuple(_Part(text[start:end], start, len(text) - end) for start, end in _merged(spans))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _common(one: str, other: str) -> int:
    """Return the number of equal characters at the beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class UnreadLines:
    """What an agent has not read of a file: its `lines` (`LINE:COLUMN` within a line), and the `call` that reads it."""

    lines: str
    call: str

    @classmethod
    def of(cls, path: Path, text: str, gaps: list[Span]) -> "UnreadLines":
        """Describe gaps of a text, which is not empty."""
        lines = []
        for start, end in gaps[:_MAX_LISTED]:
            first, column = _place(text, start)
            last = _place(text, end - 1)[0]
            begin = f"{first}:{column}" if column > 1 else f"{first}"
            lines.append(begin if first == last else f"{begin}-{last}")
        first, column = _place(text, gaps[0][0])
        within = f", start_column={column}" if column > 1 else ""
        last = _place(text, gaps[0][1] - 1)[0]
        call = f"read_file(path={path!r}, start_line={first}{within}, end_line={last})"
        return cls(", ".join(lines) + (", ..." if len(gaps) > _MAX_LISTED else ""), call)

    @classmethod
    def all_of(cls, path: Path) -> "UnreadLines":
        """Describe a file that cannot be shown as text."""
        return cls("1-", f"read_file(path={path!r})")


def _place(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column of a character, both counted from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
