"""What changes on the server, for clients that have subscribed: events of sessions become events of resources (S11)."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from math import inf

from mcp.server.session import ServerSession
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent

from cfs import api
from cfs.errors import CfsError, Unreachable
from cfs.state.stream import StreamEvent
from cfs.transports.async_http import AsyncClient
from cfs_mcp.uris import uri_of_session

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
"""Shortest time between two notices of the same resource: a reader fetches all of it after each one."""

_GROWS = {
    "message.added",
    "token",
    "turn.interrupted",
    "turn.finished",
    "turn.failed",
    "history.replaced",
    "session.created",
    "session.deleted",
}
_LISTED = {"session.created", "session.deleted"}

Listener = Callable[[ServerEvent], None]


class Changes:
    """Follows the events that one caller may see, while anyone watches. It is a `SubscriptionBus` of the library.

    A notice says that something has changed, not what: those that have not been sent yet are one.
    """

    def __init__(self, client: AsyncClient, on_end: Callable[[], None]) -> None:
        self._client = client
        self._on_end = on_end
        self._watched: Counter[str] = Counter()
        self._watchers = 0
        self._listeners: dict[object, Listener] = {}
        self._pending: dict[ServerEvent, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._following: asyncio.Task[None] | None = None
        self._connected: asyncio.Future[None] | None = None

    async def publish(self, event: ServerEvent) -> None:
        """Report a change to all listeners, soon."""
        self._note(event)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; returns the function that removes it."""
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    async def watch(self, *uris: str) -> None:
        """Follow the server until `unwatch`; returns once no event is missed. Raises the server's refusal."""
        self._watchers += 1
        self._watched.update(uris)
        try:
            if self._following is None:
                self._connected = asyncio.get_running_loop().create_future()
                self._following = asyncio.create_task(self._follow(self._connected))
            if self._connected is not None:
                await asyncio.shield(self._connected)
        except BaseException:
            await self.unwatch(*uris)
            raise

    async def unwatch(self, *uris: str) -> None:
        """End one `watch`; the last one closes the connection."""
        self._watchers -= 1
        self._watched.subtract(uris)
        self._watched = +self._watched
        if not self._watchers:
            await self.close()

    async def close(self) -> None:
        """Stop following."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (task := self._following) is not None:
            self._following = None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _follow(self, connected: asyncio.Future[None]) -> None:
        stream = replace(api.events(), announce=True)
        try:
            async with aclosing(self._client.events(stream, attempts=inf)) as events:
                async for event in events:
                    if event.type == "connected":
                        if not connected.done():
                            connected.set_result(None)
                    else:
                        self._read(event)
            raise Unreachable("the server has ended its stream of events")
        except CfsError as error:
            self._following = None
            if connected.done():
                _log.warning("subscriptions have ended: %s", error.detail)
                self._on_end()
            else:
                connected.set_exception(error)
        finally:
            if not connected.done():
                connected.cancel()

    def _read(self, event: StreamEvent) -> None:
        if event.type == "stale":  # some events are lost: anything may have changed
            self._note(ResourcesListChanged())
            for uri in self._watched:
                self._note(ResourceUpdated(uri))
            return
        if event.type in _LISTED:
            self._note(ResourcesListChanged())
        if event.type in _GROWS and (uri := uri_of_session(event.session)) in self._watched:
            self._note(ResourceUpdated(uri))

    def _note(self, event: ServerEvent) -> None:
        self._pending[event] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        pending, self._pending = self._pending, {}
        for event in pending:
            for listener in list(self._listeners.values()):
                listener(event)


class Subscriber:
    """A connection by the protocol's versions before 2026-07-28: its subscriptions and its channel for notices."""

    def __init__(self, changes: Changes, session: ServerSession) -> None:
        self._changes = changes
        self._session = session
        self._uris: set[str] = set()
        self._lists = False
        self._pending: dict[ServerEvent, None] = {}
        self._wake = asyncio.Event()
        self._unsubscribe = changes.subscribe(self._receive)
        self._sending = asyncio.create_task(self._send())

    async def add(self, uri: str) -> None:
        """Send notices of a resource."""
        if uri not in self._uris:
            await self._changes.watch(uri)
            self._uris.add(uri)

    async def remove(self, uri: str) -> None:
        """Send no more notices of a resource."""
        if uri in self._uris:
            self._uris.remove(uri)
            await self._changes.unwatch(uri)

    async def add_list(self) -> None:
        """Send notices of a change of the list of resources."""
        if not self._lists:
            self._lists = True
            try:
                await self._changes.watch()
            except BaseException:
                self._lists = False
                raise

    async def close(self) -> None:
        """Forget the connection."""
        self._unsubscribe()
        self._sending.cancel()
        with suppress(asyncio.CancelledError):
            await self._sending
        for uri in self._uris:
            await self._changes.unwatch(uri)
        if self._lists:
            await self._changes.unwatch()

    def _receive(self, event: ServerEvent) -> None:
        if event.uri in self._uris if isinstance(event, ResourceUpdated) else self._lists:
            self._pending[event] = None
            self._wake.set()

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pending, self._pending = self._pending, {}
            for event in pending:
                if isinstance(event, ResourceUpdated):
                    await self._session.send_resource_updated(event.uri)
                else:
                    await self._session.send_resource_list_changed()
