"""The backend that stores nothing (`--store memory`): all sessions end with the process."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cfs_server.domain.words import Criteria
from cfs_server.journal.journal import Batch, Hits, Opened, StoreFailed
from cfs_server.journal.records import Row


class MemoryBackend:
    """Forgets everything it is given. The history and the events are in the memory of the sessions."""

    durable = False
    shortage: str | None = None

    def open(self) -> Opened:
        """Return an empty store."""
        return Opened(secrets.token_hex(4), secrets.token_hex(4))

    def commit(self, batch: Batch) -> None:
        """Do nothing."""

    def tidy(self) -> bool:
        """Do nothing."""
        return False

    def rows(self, session: str, begins_at: int, kinds: Iterable[str]) -> list[Row]:  # noqa: ARG002
        """Return nothing."""
        return []

    def orders(self, session: str) -> Mapping[int, int]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def search(self, criteria: Criteria, keys: Sequence[str] | None, before: int | None, max_hits: int) -> Hits:  # noqa: ARG002
        """Return nothing: all messages are in the memory of the sessions."""
        return Hits()

    def events(self, session: str | None, after: int, limit: int) -> list[Row] | None:  # noqa: ARG002
        """Return None: earlier events do not exist."""
        return None

    def last_of(self, epoch: str, session: str | None) -> int | None:  # noqa: ARG002
        """Return None: there is no earlier epoch."""
        return None

    def backup(self, target: Path, between: Callable[[], None]) -> None:  # noqa: ARG002
        """Raise `StoreFailed`: there is nothing to copy."""
        raise StoreFailed("the server keeps the sessions in memory only; `cfs export` writes them to a file")

    def interrupt(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
