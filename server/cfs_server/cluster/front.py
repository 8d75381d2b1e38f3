"""The application of a replica: answers each request in the context of its slot, here or at another replica.

A request for a session goes to the slot of its name, unless the owner of that slot knows that the name is elsewhere. A
request about no session is answered in the context of the replica, which shows the sessions of all its slots. A request
about all sessions is answered there, too, and merged with what other replicas answer (`cfs_server.cluster.merging`).
While a slot has no owner, requests for it wait.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

import httpcore
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cfs.errors import AlreadyExists, CfsError, Conflict, Unavailable
from cfs_server.cluster.callers import Bodies, Callers
from cfs_server.cluster.merging import Merging, captured
from cfs_server.cluster.metrics import ClusterMetrics, merged
from cfs_server.cluster.names import NameLocation
from cfs_server.cluster.relay import (
    ALL,
    HEADER,
    MISDIRECTED,
    Broken,
    Incoming,
    Late,
    Order,
    Relay,
    RelayedResponse,
    RelayResult,
    Signer,
    is_repeatable,
    send_whole,
)
from cfs_server.cluster.replica import AGAIN_SECONDS, OwnerWait, RemoteSlot, Replica
from cfs_server.cluster.reservations import PATH, Reservations
from cfs_server.cluster.slots import HostedSlot
from cfs_server.cluster.targets import RequestTarget, TargetKind, idempotency_key, target_in_body, target_of
from cfs_server.config.settings import ServerSettings
from cfs_server.domain.ids import path_of
from cfs_server.domain.placement import slot_in, slot_of
from cfs_server.http.caller import Context
from cfs_server.http.connections import CONNECTION
from cfs_server.http.errors import JSONLine, problem_response
from cfs_server.http.middleware import credentials_of

_HEALTH = frozenset({"/healthz", "/readyz", "/health"})
_SIGHT = b"/cluster/sight"
"""Where another replica asks whether this one reaches a database, whose place is in the order."""
_SIGHT_SECONDS = 1.0
_HINTS = 10_000
_HOPS = 4
_LOST = {
    RelayResult.LOST: "the replica that has this session was lost",
    RelayResult.STOPPED: "the server stopped waiting for the replica that has this session",
}
"""Why it is not known what a request did."""
_CLIENT_ERRORS = frozenset({400, 401, 403, 405, 406, 413, 415, 422, 431})
"""Statuses that a slot which is being handed over means as it says them."""


class Front:
    """The ASGI application of a replica."""

    def __init__(
        self,
        replica: Replica,
        relay: Relay,
        signer: Signer,
        app: ASGIApp,
        context: Callable[[], Context],
        callers: Callers,
        settings: ServerSettings,
        life: str,
        lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    ) -> None:
        """Compose the parts. `app` answers each request in the context of a slot, or in `context`, which has no slot.

        `lifespan` runs the replica.

        `life` names the content of the store.
        """
        self._replica = replica
        self._relay = relay
        self._signer = signer
        self._app = app
        self._context = context
        self._body_limit = settings.max_body_bytes
        self._callers = callers
        self._life = life
        self._lifespan = Starlette(lifespan=lifespan)
        self._hints: OrderedDict[str, int] = OrderedDict()
        self._reservations = Reservations(replica, relay)
        self._metrics = ClusterMetrics()
        self._bodies = Bodies(settings.max_body_bytes)
        self._merging = Merging(replica, relay, app, callers, settings.ping)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        raw_path = scope.get("raw_path") or scope["path"].encode()
        target = raw_path + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        request = Incoming(scope["method"], target, raw_path, list(scope["headers"]), receive)
        headers = dict(request.headers)
        try:
            if (signed := headers.get(HEADER)) is not None:
                order = self._signer.read(request.method, raw_path, signed)
                request.headers = [(name, value) for name, value in request.headers if name != HEADER]
                await self._obey(order, scope, request, send)
            elif scope["path"] in _HEALTH:
                await self._health(scope, request, send)
            elif scope["path"] == "/metrics" and request.method == "GET":
                await self._show_metrics(scope, request, send)
            else:
                await self._answer(scope, request, send)
        except CfsError as error:
            await problem_response(error, scope["path"])(scope, receive, send)
        except Late:
            await _send_back("", send)
        except Broken:
            return  # the response is not complete, so uvicorn closes the connection

    async def _health(self, scope: Scope, request: Incoming, send: Send) -> None:
        """Answer that the process lives, and whether this replica can serve."""
        if scope["path"] == "/healthz":
            response = JSONLine({"status": "alive", "store": self._life, "replica": self._replica.name})
            await response(scope, request.receive, send)
            return
        stores = [slot.context.store.problem for slot in self._replica.serving()]  # may know of an outage first
        for problem in (self._replica.problem, *stores):
            if problem is not None:
                raise Unavailable(problem, retry_after=AGAIN_SECONDS)
        if self._replica.is_leaving:
            raise Unavailable("the server is stopping", retry_after=AGAIN_SECONDS)
        await self._app(dict(scope, headers=request.headers), request.receive, send)

    async def _show_metrics(self, scope: Scope, request: Incoming, send: Send) -> None:
        """Answer with the metrics of this replica. The application decides who may read them."""
        common = await captured(self._app, dict(scope, headers=request.headers), request)
        if common.status != 200:
            await send_whole(common, scope, send)
            return
        slots = self._replica.serving()
        for slot in slots:
            await slot.context.metrics.update(slot.context.store, slot.context.engine)
        self._metrics.update(len(slots), len(self._replica.others) + 1, database_up=self._replica.problem is None)
        registries = {slot.number: slot.context.metrics.registry for slot in slots}
        text = merged(self._context().metrics.registry, registries, self._metrics.registry)
        await send_whole(RelayedResponse(200, common.headers, text), scope, send)

    async def _answer(self, scope: Scope, request: Incoming, send: Send) -> None:
        headers = dict(request.headers)
        caller = await self._caller_of(request, headers)
        if caller is None:  # before anything is read, or another replica is asked
            await self._app(dict(scope, headers=request.headers), request.receive, send)
            return
        target = target_of(request.method, request.raw_path, scope["query_string"], headers)
        if target.kind is TargetKind.BODY:
            with self._bodies.reading(caller) as count:
                body = await request.whole(self._body_limit, count)
            request.rewind()
            if body is None:  # too long: the application refuses it
                await self._app(dict(scope, headers=request.headers), request.receive, send)
                return
            target = target_in_body(request.raw_path, body, target)
        match target.kind:
            case TargetKind.ALL:
                await self._merging.answer(scope, request, send)
            case TargetKind.EACH:
                await self._merging.answer_first(scope, request, send)
            case TargetKind.SESSION | TargetKind.SLOT | TargetKind.NEW:
                await self._find(self._place(target, request), target, scope, request, send)
            case _ if (slot := self._callers.slot_of(caller)) is not None:  # a share: others do not know its bearer
                await self._find(NameLocation(slot, ""), target, scope, request, send)
            case _:
                await self._app(dict(scope, headers=request.headers), request.receive, send)

    async def _caller_of(self, request: Incoming, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the name of the caller. Without a database, requests without a body go on: their owner decides."""
        try:
            return await self._callers.identify(headers)
        except Unavailable:
            if request.has_body:
                raise
            return ""

    async def _find(
        self, location: NameLocation, target: RequestTarget, scope: Scope, request: Incoming, send: Send
    ) -> None:
        """Answer a request by the owner of its slot, first that of a place. Wait for an owner if there is none."""
        patience, hops = OwnerWait(self._replica), 0
        has_key = idempotency_key(dict(request.headers)) is not None
        while True:
            owner = self._replica.owner(location.slot)
            result: RelayResult | NameLocation
            if isinstance(owner, HostedSlot):
                request.rewind()
                result = await self._serve(owner, location.mark or None, target, scope, request, send)
            elif isinstance(owner, RemoteSlot):
                result = await self._relay_to(owner, Order(location.slot, location.mark or None), request, send)
            else:
                result = RelayResult.UNREACHED
            if result is RelayResult.ANSWERED:
                return
            if isinstance(result, NameLocation):
                hops += 1
                if hops > _HOPS:
                    raise Unavailable("the name of this session was just taken; try again", retry_after=AGAIN_SECONDS)
                location = result
                self._learn(target.root, location.slot)
            else:
                if result in _LOST and not is_repeatable(request.method, has_key=has_key):
                    raise Unavailable(
                        f"{_LOST[result]} before it answered; whether it did what was asked is not known: read the"
                        " session, or send an Idempotency-Key and repeat"
                    )
                if result is RelayResult.STOPPED:
                    raise Unavailable("the server is stopping; repeat", retry_after=AGAIN_SECONDS)
                if not request.is_replayable:
                    raise Unavailable("this session is moving to another replica; repeat", retry_after=AGAIN_SECONDS)
                await patience.wait(f"no replica serves slot {location.slot} of the sessions now")

    def _place(self, target: RequestTarget, request: Incoming) -> NameLocation:
        """Return where a request goes first."""
        if target.kind is TargetKind.SLOT:
            return NameLocation(slot_in(target.key, self._replica.slots), "")
        if target.kind is TargetKind.SESSION:
            slot = self._hints.get(target.root)
            return NameLocation(slot_of(target.root, self._replica.slots) if slot is None else slot, "")
        key = idempotency_key(dict(request.headers))
        serving = self._replica.serving()
        if key is None and serving:  # a new session: here, where nothing has to be relayed
            return NameLocation(min(serving, key=lambda slot: len(slot.context.store)).number, "")
        return NameLocation(slot_of(key or str(time.monotonic_ns()), self._replica.slots), "")

    def _learn(self, root: str, slot: int) -> None:
        if root:
            self._hints[root] = slot
            self._hints.move_to_end(root)
            while len(self._hints) > _HINTS:
                self._hints.popitem(last=False)

    async def _relay_to(
        self, owner: RemoteSlot, order: Order, request: Incoming, send: Send
    ) -> RelayResult | NameLocation:
        moved = partial(self._replica.until_moved, order.slot, owner)
        result = await self._relay.send(owner.url, order, request, send, moved)
        self._metrics.relayed.labels("elsewhere" if isinstance(result, NameLocation) else result.name.lower()).inc()
        return result

    async def _obey(self, order: Order, scope: Scope, request: Incoming, send: Send) -> None:
        """Answer a request that another replica has sent on, or say where it belongs.

        The address of a replica is that of many callers, whom it counts itself.
        """
        if (connection := scope.get(CONNECTION)) is not None:
            connection.trust()
        if request.raw_path == _SIGHT:
            await JSONResponse({"sees": self._replica.sees(order.slot)})(scope, request.receive, send)
            return
        if request.raw_path == PATH:
            await self._reservations.answer(scope, request, send, order.slot)
            return
        if order.slot == ALL:
            await self._merging.answer_here(scope, request, send)
            return
        target = target_of(request.method, request.raw_path, scope["query_string"], dict(request.headers))
        if target.kind is TargetKind.BODY:
            target = target_in_body(request.raw_path, await request.whole(self._body_limit) or b"", target)
            request.rewind()
        owner = self._replica.owner(order.slot)
        result: RelayResult | NameLocation = RelayResult.MOVED
        if isinstance(owner, HostedSlot):
            result = await self._serve(owner, order.mark, target, scope, request, send)
        if result is not RelayResult.ANSWERED:
            await _send_back(f"{result.slot};{result.mark}" if isinstance(result, NameLocation) else "", send)

    async def _serve(
        self, slot: HostedSlot, mark: str | None, target: RequestTarget, scope: Scope, request: Incoming, send: Send
    ) -> RelayResult | NameLocation:
        """Answer a request by the application of a slot, unless its name is elsewhere."""
        if target.root and not slot.has(target.root) and not slot.names.admit(target.root, mark):
            return slot.names.place(target.root) or NameLocation(slot_of(target.root, self._replica.slots), "")
        reserved: NameLocation | None = None
        if target.new not in ("", target.root) and not slot.has(target.new) and _may_write(slot, request, target.new):
            reserved = await self._reservations.reserve(target.new, slot)
            if reserved is None and target.below:
                raise Conflict(
                    f"{target.new!r} is in another slot, and sub-sessions stay in theirs; copy the transcript"
                )
            if reserved is None:
                raise AlreadyExists(f"there is a session {target.new!r} already")
        sender = _SlotSender(slot, request, scope, send)
        inner = dict(scope, headers=request.headers)
        try:
            await slot(inner, request.receive, sender.send)
        finally:
            if reserved is not None and sender.status >= 400 and not slot.has(target.new):
                self._reservations.release(target.new, slot, reserved)
        return RelayResult.ANSWERED


async def _send_back(location: str, send: Send) -> None:
    """Tell the replica that has sent a request on where it belongs; an empty text means that it should look again."""
    headers = [(HEADER, location.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": MISDIRECTED, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _may_write(slot: HostedSlot, request: Incoming, root: str) -> bool:
    """Return whether the caller may write at or below a name. The application refuses others, who learn nothing."""
    try:
        principal = slot.context.principals.authenticate(credentials_of(dict(request.headers)))
        return principal is not None and bool(principal.handle.scopes("write", path_of(root)))
    except CfsError:
        return False


async def sees(relay: Relay, url: str, database: int) -> bool | None:
    """Return whether a replica reaches a database; None if it does not answer."""
    try:
        async with asyncio.timeout(_SIGHT_SECONDS):
            return bool((await relay.ask(url, Order(database), _SIGHT, {}))["sees"])
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ValueError, TimeoutError):
        return None


class _SlotSender:
    """Sends the response of a slot. Errors of one that is being handed over become 503: the next owner knows better."""

    def __init__(self, slot: HostedSlot, request: Incoming, scope: Scope, send: Send) -> None:
        self.status = 0
        self._slot = slot
        self._request = request
        self._scope = scope
        self._send = send
        self._replaced = False

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            passes = self.status < 400 or self.status in _CLIENT_ERRORS or self._was_done(message)
            if not passes and not self._slot.serves:
                self._replaced, self.status = True, 503
                error = Unavailable("this session is moving to another replica; repeat", retry_after=AGAIN_SECONDS)
                await problem_response(error, self._scope["path"])(self._scope, _nothing, self._send)
        if not self._replaced:
            await self._send(message)

    def _was_done(self, start: Message) -> bool:
        """Return whether a write was done although this is an error, and would be done twice if it was repeated."""
        has_key = idempotency_key(dict(self._request.headers)) is not None
        is_final = not any(name == b"retry-after" for name, _ in start["headers"])
        return start["status"] == 503 and is_final and not is_repeatable(self._request.method, has_key=has_key)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
