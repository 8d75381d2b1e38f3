"""Cleans up the items of old sessions (O7)."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cfs.errors import Conflict, StorageFull, Unavailable
from cfs_agents.context.documents import ItemRecord
from cfs_agents.context.names import GENERATED_SESSION
from cfs_agents.context.store import ContextFileSystem

LAST_CLEANED = ".cleaned"
_BETWEEN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CleaningPolicy:
    """Limits of what stays on disk: the age of items, and the bytes of a session's files. None is no limit."""

    expire_after: timedelta | None = timedelta(days=7)
    max_bytes: int | None = 1 << 30

    def doomed(self, records: Collection[ItemRecord], keep: Collection[str], now: datetime) -> list[tuple[str, str]]:
        """Return the ids of items to remove with the reasons, oldest first; never an id in `keep`."""
        total = sum(record.stored for record in records)
        chosen = []
        for record in sorted(records, key=lambda record: record.time):
            if record.item_id in keep:
                continue
            if self.expire_after is not None and now - record.time > self.expire_after:
                because = "expired"
            elif self.max_bytes is not None and total > self.max_bytes:
                because = "over the size cap"
            else:
                continue
            chosen.append((record.item_id, because))
            total -= record.stored
        return chosen


def clean(files: ContextFileSystem, policy: CleaningPolicy, keep: Collection[str] = ()) -> int:
    """Compress large items of a session and remove those beyond the limits; returns the number of bytes freed.

    `keep` are the ids of items that the context refers to. They stay, even beyond the limits.
    """
    freed = files.compress()
    records = [record for record in files.history() if record.path is not None]
    chosen = policy.doomed(records, keep, files.now())
    for because in sorted({because for _, because in chosen}):
        freed += files.remove([item_id for item_id, reason in chosen if reason == because], because)
    return freed


def clean_sessions(root: Path, policy: CleaningPolicy, now: datetime) -> list[str]:
    """Remove the sessions below a root that are not open and whose newest item has expired; returns their ids.

    Only sessions with generated ids are removed; sessions with other names stay.
    """
    return [session_id for session_id in _sessions(root) if _has_gone(root, session_id, policy, now)]


def clean_root(root: Path, policy: CleaningPolicy, now: datetime) -> list[str]:
    """Call `clean_sessions` at most once a day, for programs that create a new session each time."""
    last = root / LAST_CLEANED
    with suppress(OSError):
        if now.timestamp() - last.stat().st_mtime < _BETWEEN.total_seconds():
            return []
    try:
        last.touch()
    except OSError:  # the root is missing or belongs to another user
        return []
    return clean_sessions(root, policy, now)


def _sessions(root: Path) -> Iterator[str]:
    if root.is_dir():
        yield from sorted(path.name for path in root.iterdir() if GENERATED_SESSION.fullmatch(path.name))


def _has_gone(root: Path, session_id: str, policy: CleaningPolicy, now: datetime) -> bool:
    try:
        with ContextFileSystem(root, session_id, now=lambda: now) as files:
            modified = datetime.fromtimestamp(files.path.stat().st_mtime, UTC)
            last = max((record.time for record in files.history()), default=modified)
            if policy.expire_after is None or now - last <= policy.expire_after:
                return False
            files.discard()
    except (Conflict, Unavailable, StorageFull, FileNotFoundError):  # in use, not removable, or already removed
        return False
    return True
