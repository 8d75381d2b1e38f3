"""Clean-up: what is old goes, what is too much, and what is large is compressed (O7)."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cfs.errors import Conflict, StorageFull, Unavailable
from cfs_agents.context.names import GENERATED_SESSION
from cfs_agents.context.records import Record
from cfs_agents.context.storage import ContextFileSystem

LAST_CLEANED = ".cleaned"
_BETWEEN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CleaningPolicy:
    """What may stay: items up to an age, and so many bytes of files in a session (JSON and text). None is no bound."""

    expire_after: timedelta | None = timedelta(days=7)
    max_bytes: int | None = 1 << 30

    def doomed(self, records: Collection[Record], keep: Collection[str], now: datetime) -> list[tuple[str, str]]:
        """Choose what goes: ids and reasons, the oldest first; never one of the ids to `keep`."""
        total = sum(record.stored for record in records)
        chosen = []
        for record in sorted(records, key=lambda record: record.offloaded_at):
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
    """Remove what a session has too much of; return how many bytes that freed.

    `keep` are the items that the context still refers to. They stay, also beyond the cap.
    """
    freed = files.compress()
    records = [record for record in files.history() if record.path is not None]
    chosen = policy.doomed(records, keep, files.now())
    for because in sorted({because for _, because in chosen}):
        freed += files.remove([item_id for item_id, reason in chosen if reason == because], because)
    return freed


def clean_sessions(root: Path, policy: CleaningPolicy, now: datetime) -> list[str]:
    """Remove all items of the sessions below a root that nobody has open and whose last item has expired.

    Only sessions with generated ids are looked at; a folder that somebody named stays. Return the ids of the sessions
    that are gone.
    """
    return [session_id for session_id in _sessions(root) if _has_gone(root, session_id, policy, now)]


def clean_root(root: Path, policy: CleaningPolicy, now: datetime) -> list[str]:
    """Do the same once a day, for whoever makes a new session each time and never comes back to it."""
    last = root / LAST_CLEANED
    with suppress(OSError):
        if now.timestamp() - last.stat().st_mtime < _BETWEEN.total_seconds():
            return []
    try:
        last.touch()
    except OSError:  # there is no such root, or it is not ours
        return []
    return clean_sessions(root, policy, now)


def _sessions(root: Path) -> Iterator[str]:
    if root.is_dir():
        yield from sorted(path.name for path in root.iterdir() if GENERATED_SESSION.fullmatch(path.name))


def _has_gone(root: Path, session_id: str, policy: CleaningPolicy, now: datetime) -> bool:
    try:
        with ContextFileSystem(root, session_id, now=lambda: now) as files:
            made = datetime.fromtimestamp(files.path.stat().st_mtime, UTC)
            last = max((record.time for record in files.history()), default=made)
            if policy.expire_after is None or now - last <= policy.expire_after:
                return False
            files.discard()
    except (Conflict, Unavailable, StorageFull, FileNotFoundError):  # in use, not ours to remove, or gone
        return False
    return True
