"""Deletes sessions that have not changed for as long as they are to be kept.

The setting `keep` applies to a session and to what is below it, unless that has its own. A session is deleted with all
below it, so it stays until the last of them may go. Nothing in which a turn runs or waits is deleted.
"""

import asyncio
import time
from collections.abc import Callable
from math import inf

import structlog

from cfs.errors import CfsError
from cfs.wire import Keep, seconds_of
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore

_ROUND_SECONDS = 60.0
_AT_ONCE = 200
"""Sessions to look at before other work gets its turn."""

_log = structlog.get_logger(__name__)


class Retention:
    """Deletes the sessions of a store when their time is over. `keep` is for those that do not set it."""

    def __init__(self, store: SessionStore, keep: Keep, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keep = seconds_of(keep)
        self._clock = clock

    async def run(self) -> None:
        """Delete what is due, once a minute, for ever."""
        while True:
            try:
                await self.sweep()
            except CfsError as error:  # the store takes no changes now; the next round tries again
                _log.warning("retention.failed", reason=error.detail)
            await asyncio.sleep(_ROUND_SECONDS)

    async def sweep(self) -> int:
        """Look at all sessions, and return how many were deleted."""
        deleted, after = 0, ""
        while roots := self._store.page(after=after, limit=_AT_ONCE):
            for root in roots:
                if not root.deleted and (gone := self._sweep(root)):
                    deleted += gone
                    await asyncio.sleep(0)
            after = roots[-1].id
            await asyncio.sleep(0)
        return deleted

    def _sweep(self, root: Session) -> int:
        """Delete the highest sessions of a tree whose time is over."""
        due: list[Session] = []
        self._look(root, self._keep, due)
        return sum(map(self._delete, due))

    def _look(self, session: Session, keep: float, due: list[Session]) -> float:
        """Return when the last session of a subtree may go. Sessions that are due on their own are added to `due`."""
        setting = session.settings.keep
        keep = keep if setting is None else seconds_of(setting)
        below: list[Session] = []
        ends = [self._look(child, keep, below) for child in self._store.children(session)]
        end = max([session.updated_at + keep if session.idle else inf, *ends])
        is_root = "/" not in session.id
        if end <= self._clock() and (is_root or setting is not None):
            due.append(session)
        else:
            due += below
        return end

    def _delete(self, session: Session) -> int:
        count = len(self._store.family(session))
        idle_days = (self._clock() - session.updated_at) / 86_400
        _log.info("session.expired", session=session.id, sessions=count, idle_days=round(idle_days, 1))
        self._store.delete(session.id)
        return count
