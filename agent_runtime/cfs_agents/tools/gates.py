"""Gates that the reads and writes of an agent pass: a file is not overwritten by an agent that has read only a part."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.reading import ReadRanges, UnreadLines
from cfs_filesystem import Path


class FileGate(Protocol):
    """Sees the reads of the file tools, and decides about their writes."""

    def read(self, path: Path, text: str, start: int, end: int) -> None:
        """Record that the agent has seen a range of a file, whose whole text this is."""
        ...

    def writing(
        self, path: Path, content: str | None = None, present: Callable[[], str | None] = lambda: None
    ) -> AbstractContextManager[None]:
        """Return a lock for writing a file; with `content` the write replaces the file without reading it.

        `present` returns the text of the file; None if it has none. Raises `ToolError` if the write is refused.
        """
        ...

    def edited(self, path: Path, before: str, after: str, start: int, end: int) -> None:
        """Record that the agent has replaced a range of the text `before`; `after` is the new text."""
        ...


class PartialReads:
    """The gate of an agent that works alone: a file of which it saw only a part is not replaced as a whole.

    It can be replaced if the agent has never read it, or has once read or written all of it. Threads may share the
    object.
    """

    def __init__(self) -> None:
        self._partly: dict[Path, ReadRanges] = {}
        self._whole: set[Path] = set()
        self._lock = threading.Lock()

    def read(self, path: Path, text: str, start: int, end: int) -> None:
        """Record what was seen."""
        with self._lock:
            if path in self._whole:
                return
            ranges = self._partly.setdefault(path, ReadRanges())
            ranges.add(text, start, end)
            if not ranges.gaps(text):
                self._know(path)

    @contextmanager
    def writing(
        self, path: Path, content: str | None = None, present: Callable[[], str | None] = lambda: None
    ) -> Iterator[None]:
        """Allow a write, unless it would replace lines that were not read."""
        if content is not None:
            self._require_read(path, content, present)
        yield
        if content is not None:
            with self._lock:
                self._know(path)

    def edited(self, path: Path, before: str, after: str, start: int, end: int) -> None:
        """Follow an edit of a file that was read in part."""
        with self._lock:
            if (ranges := self._partly.get(path)) is not None:
                ranges.edited(before, after, start, end)

    def _know(self, path: Path) -> None:
        self._partly.pop(path, None)
        self._whole.add(path)

    def _require_read(self, path: Path, content: str, present: Callable[[], str | None]) -> None:
        with self._lock:
            ranges = self._partly.get(path)
            text = None if ranges is None else present()
            if ranges is None or text is None or text == content or not (gaps := ranges.gaps(text)):
                return
        unread = UnreadLines.of(path, text, gaps)
        raise ToolError(
            f"{path} is not overwritten: you have read only a part of it, and not its lines {unread.lines}."
            f" Read them: {unread.call}. Or change lines that you have read with edit_file."
        )
