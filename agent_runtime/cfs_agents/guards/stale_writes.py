"""Stale writes: refused if the file has content that its agent has not read (B7)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cfs_agents.base.messages import Language, catalogue
from cfs_agents.guards.claims import relative
from cfs_agents.guards.ledger import ChangeLog, content_id
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.reading import ReadRanges, UnreadLines


class StaleWrites:
    """The gate before one agent's writes: a `FileGate`. Any number of threads; all of a tree share the ledger.

    An agent knows the ranges of a file that it read or wrote, as far as they are unchanged. To replace the whole file
    it must know all of it. It may also replace a file of which it has seen nothing, if no other agent wrote it and it
    is unchanged since the agent's work began.
    """

    def __init__(self, ledger: ChangeLog, agent_id: str, language: Language = "en") -> None:
        self._ledger = ledger
        self._agent_id = agent_id
        self._say = catalogue(language)
        self._known: dict[str, ReadRanges] = {}
        self._versions: dict[str, str | None] = {}
        """The content of each file when the agent last read or wrote some of it."""
        self._lock = threading.Lock()
        self._over = False

    def close(self) -> None:
        """Refuse all writes from now on, also of a thread that outlives its agent."""
        self._over = True

    def open(self) -> None:
        """Allow writes again: the agent has another task."""
        self._over = False

    def read(self, path: str, text: str, start: int, end: int) -> None:
        """Record that the agent has seen a range of a file, whose whole text this is."""
        if (relative_path := relative(path)) is not None:
            with self._lock:
                self._known.setdefault(relative_path, ReadRanges()).add(text, start, end)
                self._versions[relative_path] = content_id(text)

    @contextmanager
    def writing(
        self, path: str, content: str | None = None, present: Callable[[], str | None] = lambda: None
    ) -> Iterator[None]:
        """Allow one write. If it replaces the whole `content`, the agent must know the current one, or write the same.

        Raises `ToolError` if it does not, or has ended.
        """
        if self._over:
            raise ToolError(self._say.over)
        relative_path = relative(path)
        if relative_path is None:
            yield
            return
        with self._ledger.writing(self._agent_id, relative_path) as now:
            if content is not None and now not in (None, content_id(content)):
                self._require_known(path, relative_path, now, present)
            self._ledger.begins(self._agent_id, relative_path)
            yield
            if content is not None:
                with self._lock:
                    self._known[relative_path] = ReadRanges()
                    self._known[relative_path].add(content, 0, len(content))
                    self._versions[relative_path] = content_id(content)

    def edited(self, path: str, before: str, after: str, start: int, end: int) -> None:
        """Record that the agent has replaced a range of the text `before`; `after` is the new text."""
        if (relative_path := relative(path)) is not None:
            with self._lock:
                self._known.setdefault(relative_path, ReadRanges()).edited(before, after, start, end)
                self._versions[relative_path] = content_id(after)

    def _require_known(self, path: str, relative_path: str, now: str | None, present: Callable[[], str | None]) -> None:
        with self._lock:
            ranges = self._known.get(relative_path)
            if ranges is None and not self._is_of_others(relative_path, now):
                return
            text = present()
            gaps = [(0, len(text or ""))] if ranges is None or not text else ranges.gaps(text)
            if not gaps:
                return
            changed = ranges is None or self._versions.get(relative_path) != now
        unread = UnreadLines.of(path, text, gaps) if text else UnreadLines.all_of(path)
        if changed:
            who = self._ledger.last_by(relative_path) or self._say.somebody
            raise ToolError(self._say.stale.format(relative_path, who, unread.lines, unread.call))
        raise ToolError(self._say.read_in_part.format(relative_path, unread.lines, unread.call))

    def _is_of_others(self, relative_path: str, now: str | None) -> bool:
        others = self._ledger.last_by(relative_path) not in (None, self._agent_id)
        return others or self._ledger.known_to(self._agent_id, relative_path) != now
