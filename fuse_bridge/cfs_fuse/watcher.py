"""The one connection over which the bridge learns what happens to all sessions (F7)."""

import logging
import threading
from dataclasses import replace

from cfs import api
from cfs.errors import CfsError, NotFound, Unreachable
from cfs.stream import StreamEvent
from cfs.transports.http import Client
from cfs_fuse.cache import Cache
from cfs_fuse.server import listing

_log = logging.getLogger(__name__)

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5


class Watcher(threading.Thread):
    """Keeps the cache true until it is stopped: resumes after each break, and begins anew where it cannot resume."""

    def __init__(self, client: Client, cache: Cache) -> None:
        super().__init__(name="watcher", daemon=True)
        self._client = client
        self._cache = cache
        self._cursor: str | None = None
        self._connected = False
        self._pause = FIRST_PAUSE
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let the thread end; a connection that is silent is left to the end of the process."""
        self._stopped.set()

    def run(self) -> None:
        """Follow the server."""
        while not self._stopped.is_set():
            self._connected = False
            away: CfsError = Unreachable("the server is away; the mount works again as soon as it is back")
            try:
                self._follow()
            except CfsError as error:
                away = error
                _log.warning("the connection to the server: %s", error.detail)
            except Exception:  # noqa: BLE001 - a mount that shows the past for ever would be worse
                _log.exception("following the server failed")
                self._cursor = None
            if not self._connected:  # a stream that was there and ended is made again at once: nobody needs to know
                self._cache.offline(away)
                self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._stopped.wait(self._pause)

    def _follow(self) -> None:
        """Follow one connection to its end."""
        stream = replace(api.events(after=self._cursor), announce=True)
        for event in self._client.events(stream, attempts=0):
            if self._stopped.is_set():
                return
            self._take(event)

    def _take(self, event: StreamEvent) -> None:
        if event.type in ("connected", "stale"):
            self._refresh(resumed=event.type == "connected" and self._cursor is not None)
        elif event.type != "goodbye":
            self._cache.apply(event)
        self._cursor = event.id or self._cursor

    def _refresh(self, *, resumed: bool) -> None:
        """Take everything over: events on this connection go on from here at the latest."""
        while True:
            try:
                found = list(listing(self._client))
            except NotFound:  # a session with sub-sessions was deleted between two calls
                continue
            break
        self._cache.refresh(found, resumed=resumed)
        self._pause = FIRST_PAUSE
        self._connected = True
        _log.info("following %s: %d sessions", self._client.url, len(found))
