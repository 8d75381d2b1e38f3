"""A backend whose disk outlives crashes, and a journal that writes when the test wants it."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cfs.errors import Unavailable
from cfs_server.domain.words import Criteria
from cfs_server.journal.journal import Backend, Batch, Hit, Hits, Journal, Opened, batch_of
from cfs_server.journal.records import DELETED, HISTORY, Row, decode_head, decode_messages

_T = TypeVar("_T")


@dataclass
class Disk:
    """What survives a crash."""

    life: str = field(default_factory=lambda: secrets.token_hex(4))
    rows: list[Row] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)
    kept: dict[tuple[str, str], str] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """The last record before each epoch."""


class DiskBackend:
    """The simplest backend that keeps everything."""

    shortage: str | None = None

    durable = True

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def open(self) -> Opened:
        """Begin an epoch."""
        disk, epoch = self.disk, secrets.token_hex(4)
        last = max((row.seq for row in disk.rows), default=0)
        disk.epochs[epoch] = last
        heads = [decode_head(text) for text in disk.heads.values()]
        known = {head.key: head.seq for head in heads}
        rows = [row for row in disk.rows if row.seq > known.get(row.session, 0) and row.kind != DELETED]
        kept: dict[str, dict[str, str]] = {}
        for (space, name), value in disk.kept.items():
            kept.setdefault(space, {})[name] = value
        position = max((row.position for row in disk.rows), default=0)
        return Opened(epoch, disk.life, last, position, heads, rows, kept)

    def commit(self, batch: Batch) -> None:
        """Store a batch."""
        disk = self.disk
        disk.rows += batch.rows
        disk.heads |= {key: text for key, _, text in batch.heads}
        for row in batch.rows:
            if row.kind == DELETED:
                disk.rows = [each for each in disk.rows if each.session != row.session or each is row]
                disk.heads.pop(row.session, None)
        for space, name, value in batch.kept:
            disk.kept.pop((space, name), None)
            if value is not None:
                disk.kept[space, name] = value

    def rows(self, session: str, begins_at: int, kinds: Iterable[str]) -> list[Row]:
        """Return rows of a session."""
        wanted = set(kinds)
        return [row for row in self.disk.rows if row.session == session and row.seq >= begins_at and row.kind in wanted]

    def orders(self, session: str) -> Mapping[int, int]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def search(self, criteria: Criteria, keys: Sequence[str] | None, before: int | None, max_hits: int) -> Hits:  # noqa: ARG002
        """Return all messages, newest first."""
        rows = [row for row in reversed(self.disk.rows) if row.kind in HISTORY]
        return Hits([Hit(row, part) for row in rows for part in reversed(range(len(decode_messages(row))))])

    def events(self, session: str | None, after: int, most: int) -> list[Row] | None:  # noqa: ARG002
        """Return rows with events after a number."""
        if session is None:
            return [row for row in self.disk.rows if row.events and row.position > after]
        return [row for row in self.disk.rows if row.session == session and row.events and row.number > after]

    def last_of(self, epoch: str, session: str | None) -> int | None:
        """Return the last number of a log in an epoch."""
        if epoch not in self.disk.epochs:
            return None
        names = list(self.disk.epochs)
        at = names.index(epoch)
        end = self.disk.epochs[names[at + 1]] if at + 1 < len(names) else float("inf")
        rows = [row for row in self.disk.rows if row.seq <= end and session in (None, row.session)]
        return max((row.position if session is None else row.number for row in rows), default=0)

    def tidy(self) -> bool:
        """There is nothing to tidy."""
        return False

    def backup(self, target: Path, between: Callable[[], None]) -> None:
        """There are no files."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ManualJournal(Journal):
    """A journal without a thread. It writes when `write` is called, and never by itself."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(DiskBackend(disk))

    async def open(self) -> Opened:
        """Open the disk."""
        self._loop = asyncio.get_running_loop()
        self.opened = self._backend.open()
        self.tail = list(self.opened.rows)
        self._seq = self._durable = self.opened.seq
        self._kept = {space: dict(names) for space, names in self.opened.kept.items()}
        return self.opened

    async def call(self, work: Callable[[Backend], _T]) -> _T:
        """Run work at once."""
        return work(self._backend)

    def _schedule(self, *, urgent: bool) -> None:
        """Wait for `write`."""

    def write(self, most: int | None = None) -> None:
        """Make the first pending records durable; all without a number."""
        count = len(self._pending) if most is None else min(most, len(self._pending))
        pending, self._pending = self._pending[:count], self._pending[count:]
        if pending:
            self._backend.commit(batch_of(pending))
            self._committed(pending, None)

    def crash(self) -> None:
        """Lose what is pending. All who wait for it get an error, as their process has ended."""
        self._pending, self._failed, self.problem = [], True, "crashed"
        waiters, self._waiters = self._waiters, []
        for done in [done for _, done, _ in waiters if not done.done()]:
            done.set_exception(Unavailable("crashed"))
