"""Receives the head of each request, before the caller is known: its limits, and one reading of its fields (H5, H7).

uvicorn waits for a request head without a time limit and without a size limit. No application code runs before the head
is complete. The server therefore uses this subclass of uvicorn's protocol. It limits the bytes and fields of a head,
the time for a head, the time without progress in a body, the bytes of a body that arrive after the response, the
requests in a pipeline, and the unfinished connections of one address. A complete request is no longer counted. There
are no timers per connection: `sweep` checks the unfinished connections twice a second.

A list of fields has no meaning of its own when a name stands in it twice (RFC 9110, 5.3): some readers take the first
value, others the last one, and a replica may send a request on by one reading that its owner answers by another. All
that look at the fields after this find one line for each name.
"""

import ipaddress
import json
from collections import Counter
from typing import Any

import httptools
import structlog
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from cfs.errors import CfsError, InvalidRequest, Timeout, TooLarge, TooMany, to_problem
from cfs_server.base.limits import ConnectionLimits

_log = structlog.get_logger(__name__)

CONNECTION = "cfs.connection"
"""The key of the connection in the scope of a request."""
SWEEPS_A_SECOND = 2
_VERSIONS = frozenset({"1.1", "1.0"})
_PIPELINED = 32
"""The maximum number of requests that a connection may send ahead of their responses. Each one uses memory."""
_OFFER = frozenset({b"upgrade", b"http2-settings"})
_CROWD_SECONDS = 1.0
"""Seconds for which an address may have any number of unfinished connections. A short burst is not an attack."""
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
"""Bytes of a refused request that are still read and dropped. Without this, many clients would lose the response."""
_DROPPED_BYTES = 128 << 20
"""Bytes of a body that are read and dropped after the response, so that clients which first send all of it get it."""
_CLOSE = (b"connection", b"close")
_SINGLE = frozenset(
    {
        *(b"authorization", b"x-api-key", b"host", b"origin", b"referer"),
        *(b"content-length", b"content-type", b"content-range", b"content-location"),
        *(b"range", b"if-range", b"if-modified-since", b"if-unmodified-since", b"last-event-id", b"expect"),
        *(b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user"),
        *(b"destination", b"depth", b"overwrite", b"if", b"lock-token"),
        *(b"idempotency-key", b"anthropic-version", b"x-expected-entity-length"),
    }
)
"""Fields with one value. Different ones in one request are refused: it is not known which one the client means."""
_OWN = b"x-cfs-"
"""The beginning of fields of this server, which have one value, too."""

Fields = list[tuple[bytes, bytes]]


class _RefusedRequest(Exception):
    """Raised in the parser's callbacks to reject the request."""

    def __init__(self, status: int, error: CfsError) -> None:
        super().__init__(error.detail)
        self.status = status
        self.error = error


class Connections:
    """The connections without a complete request, ordered by the time at which they began to wait for one."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._unfinished: dict[HttpConnection, None] = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._unfinished)

    def protocol(self, **parts: Any) -> "HttpConnection":
        """Create the protocol of a new connection. Called by uvicorn."""
        return HttpConnection(self, **parts)

    def begin(self, connection: "HttpConnection") -> None:
        """Start to count a connection that sends, or will send, a request."""
        self._unfinished[connection] = None
        self._of_address[connection.address] += 1

    def end(self, connection: "HttpConnection") -> None:
        """Stop counting a connection."""
        if connection in self._unfinished:
            del self._unfinished[connection]
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def crowded(self, address: str) -> bool:
        """Return whether an address has more unfinished connections than it may have for long."""
        return address != "" and self._of_address[address] > self.limits.unfinished

    def sweep(self, now: float) -> None:
        """Refuse the late connections, and the newest ones of each address that has too many."""
        lasting: Counter[str] = Counter()
        for connection in list(self._unfinished):
            if (late := connection.late(now)) is not None:
                connection.refuse(408, late)
            elif connection.address and now - connection.since > _CROWD_SECONDS:
                lasting[connection.address] += 1
                if lasting[connection.address] > self.limits.unfinished:
                    connection.refuse_crowd()

    def address_of(self, client: tuple[str, int] | None) -> str:
        """Return the key under which a connection is counted. Empty for a trusted proxy, which limits its own clients.

        An IPv6 address counts as its /64 network, because one customer usually gets a whole /64.
        """
        if client is None:
            return ""
        try:
            address = ipaddress.ip_address(client[0].partition("%")[0])
        except ValueError:
            return client[0]
        address = getattr(address, "ipv4_mapped", None) or address
        if any(address in network for network in self.limits.trusted_proxies):
            return ""
        return str(address) if address.version == 4 else address.packed[:8].hex()


class HttpConnection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits.

    `since` is the time at which the connection began to wait for the current request. `_overhead` is the number of
    bytes received since then, or since the last piece of the body: request head, chunk extensions, trailers.
    """

    def __init__(self, connections: Connections, **parts: Any) -> None:
        super().__init__(**parts)
        self._connections = connections
        self._limits = connections.limits
        self._waiting = False
        self._begun = False
        self._in_head = True
        self._silent = True
        self._deaf = False
        self._overhead = self._size = self._fields = self._discarded = self._body = self._dropped = 0
        self._closes = False
        self._running: RequestResponseCycle | None = None
        self._refusal: tuple[int, CfsError] | None = None
        self._declined: bytes | None = None
        self.address = ""
        self.since = self._progress = 0.0

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first request."""
        super().connection_made(transport)
        self.address = self._connections.address_of(self.client)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop tracking the connection."""
        self._connections.end(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes while they are within the limits."""
        if self._deaf:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.flow.pause_reading()  # until the connection ends: the client has time to read the response
            return
        self._unset_keepalive_if_required()
        if not self._waiting:
            self._begin()
        self._silent = False
        self._overhead += len(data)
        try:
            self._feed(data)
            if self._overhead > self._limits.head_bytes:
                self._refuse_overhead()
            if self._in_head and self._overhead and self._connections.crowded(self.address):
                self.refuse_crowd()
        except _RefusedRequest as refused:
            self.refuse(refused.status, refused.error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _RefusedRequest):
                self.refuse(cause.status, cause.error)
            else:
                self.refuse(400, InvalidRequest("this is no valid HTTP/1.1 request"))
        else:
            if not self._begun and not self._overhead:
                self._finish()

    def _feed(self, data: bytes) -> None:
        """Parse bytes. A request that offers another protocol is parsed again without the offer.

        A server may ignore an offer (RFC 9110, 7.8), and the JDK's client makes one with each request on a new
        connection. The parser stops after the head of such a request, and does not read its body.
        """
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                head, self._declined = self._declined, None
                if head is None:  # CONNECT has been answered with an error: what follows is no HTTP
                    self.cycle.keep_alive = False
                    self._stop_listening()
                    return
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = head + data[upgrade.args[0] :]
            else:
                return

    def on_message_begin(self) -> None:
        """Start to count a head."""
        self._begun = True
        self._size = self._fields = self._body = self._dropped = 0
        self.since = self.loop.time()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the target."""
        self._size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header field. A trailer field is dropped, because the server reads none."""
        self._fields += 1
        self._size += len(name) + len(value) + 4
        if self._fields > self._limits.head_fields:
            raise _RefusedRequest(431, TooLarge(f"a request has {self._limits.head_fields} header fields at most"))
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request to the application."""
        if self._size > self._limits.head_bytes:
            self._refuse_overhead()
        try:
            self.headers[:] = one_reading(self.headers)
        except InvalidRequest as error:
            raise _RefusedRequest(400, error) from None
        if self.parser.get_http_version() not in _VERSIONS:
            raise _RefusedRequest(400, InvalidRequest("this server speaks HTTP/1.1 and HTTP/1.0"))
        offers = [value.lower() for name, value in self.headers if name == b"upgrade"]
        if offers and self.parser.should_upgrade():
            if any(b"websocket" in offer for offer in offers):
                raise _RefusedRequest(
                    400, InvalidRequest("there are no WebSockets here: events come as server-sent events")
                )
            self._declined = self._head_without_offer()
            return
        if len(self.pipeline) >= _PIPELINED:
            raise _RefusedRequest(429, TooMany(f"{_PIPELINED} requests at most are taken ahead of their answers"))
        self._in_head, self._overhead = False, 0
        self._progress = self.loop.time()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Accept a piece of the body. A piece that the application no longer reads is not progress."""
        self._overhead = 0
        self._body += len(body)
        if not self.cycle.response_complete:
            self._progress = self.loop.time()
        else:
            self._dropped += len(body)
            if self._dropped > _DROPPED_BYTES:
                self._stop_listening()
                self._linger()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        if self._declined is not None:
            return
        self._begun, self._in_head, self._overhead = False, True, 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        async def answered(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async def sent(message: ASGISendEvent) -> None:
                if message["type"] == "http.response.start" and self._leaves_much(cycle):
                    message["headers"] = [*message.get("headers", ()), _CLOSE]
                    await send(message)
                    # uvicorn would close at once, with bytes unread, and the client could lose the response
                    self._closes = cycle.keep_alive = True
                else:
                    await send(message)

            await app(scope, receive, sent)

        self._running = cycle
        super()._start_asgi_task(cycle, answered)

    def _leaves_much(self, cycle: RequestResponseCycle) -> bool:
        """Return whether more of a body is to come than is dropped after the response to its request, if that is known.

        A client that waits for `100 Continue` may send the body or not, so it is not known where the next request
        begins (RFC 9110, 10.1.1).
        """
        if not cycle.more_body or cycle is not self.cycle:
            return False
        length = next((value for name, value in cycle.scope["headers"] if name == b"content-length"), b"0")
        return cycle.waiting_for_100_continue or int(length) > self._body + _DROPPED_BYTES

    def on_response_complete(self) -> None:
        """Start the next request, or send a pending refusal after the last complete request."""
        super().on_response_complete()
        if self._closes and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._stop_listening()
            self._linger()
            return
        refusal, running = self._refusal, self._running
        last = not self.pipeline and running is not None and running.response_complete
        if refusal is not None and last and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._answer(*refusal)

    def trust(self) -> None:
        """Stop to count this connection for its address: a proxy that limits its own clients has sent the request."""
        self._connections.end(self)
        self.address = ""
        if self._waiting:
            self._connections.begin(self)

    def late(self, now: float) -> Timeout | None:
        """Return the time-out that the client has exceeded, or None. Delays of the server do not count."""
        if self.flow.read_paused or (not self._in_head and self.cycle.waiting_for_100_continue):
            self.since = self._progress = now
        elif self._in_head and now - self.since > self._limits.head_seconds:
            return Timeout(f"the head of a request must be there within {self._limits.head_seconds:g} seconds")
        elif not self._in_head and now - self._progress > self._limits.stall_seconds:
            return Timeout(f"nothing more of the body has come for {self._limits.stall_seconds:g} seconds")
        return None

    def refuse_crowd(self) -> None:
        """Refuse a connection of an address that has too many."""
        max_requests = self._limits.unfinished
        self.refuse(429, TooMany(f"one address may have {max_requests} unfinished requests at most", retry_after=1))

    def refuse(self, status: int, error: CfsError) -> None:
        """Send a problem document if this request is the next to answer, and close the connection."""
        log = _log.debug if self._silent else _log.info
        log("connection.refused", client=self.client and self.client[0], status=status, reason=error.detail)
        running, in_head = self._running, self._in_head
        self._stop_listening()
        if running is None or (in_head and running.response_complete):
            self._answer(status, error)
        elif in_head or running is not self.cycle:  # after the responses to the complete requests before it
            if not in_head:
                self.pipeline.popleft()
            self._refusal = (status, error)
            self.flow.pause_reading()
        else:  # the body of this request is invalid
            started, running.disconnected = running.response_started, True
            running.message_event.set()
            if started:
                self.transport.close()
            else:
                self._answer(status, error)

    def _answer(self, status: int, error: CfsError) -> None:
        if self._silent:  # no request was sent
            self.transport.close()
            return
        body = json.dumps(to_problem(error) | {"status": status}).encode()
        head = [
            STATUS_LINE[status],
            b"content-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body),
            *(b"%s: %s\r\n" % field for field in self.server_state.default_headers),
        ]
        if error.retry_after is not None:
            head.append(b"retry-after: %d\r\n" % error.retry_after)
        self.transport.write(b"".join([*head, b"\r\n", body]))
        self._linger()

    def _linger(self) -> None:
        """End the connection when the client has had time to read the last response."""
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _refuse_overhead(self) -> None:
        max_bytes = self._limits.head_bytes
        if self._in_head:
            raise _RefusedRequest(431, TooLarge(f"the head of a request has {max_bytes} bytes at most"))
        raise _RefusedRequest(400, InvalidRequest(f"extensions of a chunk and trailers have {max_bytes} bytes at most"))

    def _head_without_offer(self) -> bytes:
        """Return the head of the current request without the fields that offer another protocol."""
        fields = []
        for name, value in self.headers:
            if name == b"connection":
                options = [option for option in value.split(b",") if option.strip().lower() not in _OFFER]
                value = b",".join(options) or b"keep-alive"
            if name not in _OFFER:
                fields.append(b"%s: %s\r\n" % (name, value))
        line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        return b"".join([line, *fields, b"\r\n"])

    def _begin(self) -> None:
        self._waiting = True
        self.since = self.loop.time()
        self._connections.begin(self)

    def _finish(self) -> None:
        self._waiting = False
        self._connections.end(self)

    def _stop_listening(self) -> None:
        self._deaf = True
        self._finish()


def one_reading(fields: Fields) -> Fields:
    """Return the fields with one line for each name; names are in lower case. Raises `InvalidRequest`.

    Lists that are spread over several lines are joined. Names with `_` are dropped, as proxies do: CGI, and with it
    WSGI, cannot tell them from those with `-`.
    """
    values: dict[bytes, bytes] = {}
    for name, value in fields:
        if b"_" in name:
            continue
        before, is_single = values.get(name), name in _SINGLE or name.startswith(_OWN)
        if before is None:
            values[name] = value
        elif is_single and (before != value or name == b"host"):  # two of `Host` are always wrong (RFC 9112, 3.2)
            raise InvalidRequest(f"the header field {name.decode('latin-1')!r} was sent twice; send it once")
        elif not is_single:
            values[name] = before + (b"; " if name == b"cookie" else b", ") + value
    return list(values.items())
