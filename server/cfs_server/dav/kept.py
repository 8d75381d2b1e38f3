"""What lives longer than a request: each principal's scratch files, and what its programs did a moment ago."""

import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from cfs_server.dav.clients import Clients
from cfs_server.dav.scratch import ScratchFiles
from cfs_server.sessions.carrier import Carrier

_SWEEP_SECONDS = 60.0


class Kept:
    """What is kept for one principal."""

    def __init__(self, on_loop: Carrier, clock: Callable[[], float]) -> None:
        self.on_loop = on_loop
        self.scratch = ScratchFiles(clock)
        self.clients = Clients(clock)


class Keeper:
    """Keeps it for all of them; to be made, and used, on the event loop that the sessions live on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._on_loop = Carrier()
        self._clock = clock
        self._kept: WeakKeyDictionary[object, Kept] = WeakKeyDictionary()
        self._swept_at = clock()

    def of(self, principal: object) -> Kept:
        """Return what is kept for a principal, as long as there is one."""
        if self._clock() - self._swept_at > _SWEEP_SECONDS:
            self._swept_at = self._clock()
            for kept in self._kept.values():
                kept.scratch.expire()
        found = self._kept.get(principal)
        if found is None:
            found = self._kept[principal] = Kept(self._on_loop, self._clock)
        return found
