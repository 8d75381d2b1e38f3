"""Principals: who calls, what they may do, and how much of it (G9, H7)."""

from collections.abc import Iterator
from contextlib import contextmanager

from anyio import CancelScope, CapacityLimiter

from cfs_filesystem import OPERATIONS, Grant, RouterFileSystem
from cfs_server.access.limits import PrincipalLimits, Rate
from cfs_server.sessions.accounts import Allowance
from cfs_server.sessions.filesystem import SessionFileSystem
from cfs_server.sessions.paths import SESSIONS, WORKSPACES
from cfs_server.sessions.store import SessionStore
from cfs_server.workspaces import Usage, Workspaces

_SEARCHES = 2
"""Searches of one principal at a time: each may take a second of a processor, and the threads are everybody's."""
LOCAL = "local"
"""The caller's name where there are no tokens."""
EVERYTHING = (Grant(prefix="/", ops=OPERATIONS),)


class Principal:
    """A caller: its handle is the only way to what the server holds, and its account counts what it made."""

    def __init__(self, name: str, store: SessionStore, workspaces: Workspaces) -> None:
        self.name = name
        self.account = store.account.part(name, Allowance())
        sessions = SessionFileSystem(store, self.account)
        self.handle = RouterFileSystem({SESSIONS: sessions, WORKSPACES: workspaces}).create_handle(())
        self.usage = Usage(self.handle, workspaces)
        self.searches = CapacityLimiter(_SEARCHES)
        self.limits = PrincipalLimits()
        self.streams = 0
        self._lives: set[CancelScope] = set()
        self.rate = Rate()

    def allow(self, grants: tuple[Grant, ...], limits: PrincipalLimits) -> None:
        """Set what it may do from now on; who may do nothing has no connections either."""
        self.handle.grants = list(grants)
        self.limits = limits
        if not grants:
            for life in self._lives:
                life.cancel()
        self.account.allowance = Allowance(limits.sessions, limits.bytes)
        self.rate.limit(limits.requests)

    @contextmanager
    def connected(self, life: CancelScope) -> Iterator[None]:
        """Let a connection of the principal end with its rights."""
        self._lives.add(life)
        try:
            yield
        finally:
            self._lives.discard(life)
