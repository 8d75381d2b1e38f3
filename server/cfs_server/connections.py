"""What a connection may cost as long as its request is not there: before anybody knows who calls (H7).

uvicorn waits for a head as long as its client likes, and holds it however long it grows; nothing of the application
runs before. So the server hands uvicorn this subclass of its own protocol, which counts what comes in: bytes and fields
of a head, the time for it, the time for which a body stalls, requests in a row, and the connections of one address that
have no whole request. Nothing is counted once the request is there, and nothing waits for a timer of its own: `sweep`
looks at the unfinished ones twice a second.
"""

import ipaddress
import json
from collections import Counter
from typing import Any

import httptools
import structlog
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from cfs.errors import CfsError, InvalidRequest, Timeout, TooLarge, TooMany, to_problem
from cfs_server.access.auth import ConnectionLimits

_log = structlog.get_logger(__name__)

SWEEPS_A_SECOND = 2
_VERSIONS = frozenset({"1.1", "1.0"})
_PIPELINED = 32
"""Requests that one connection may send ahead of their answers; more would be parsed into memory at once."""
_CROWD_SECONDS = 1.0
"""An address may have any number of connections unfinished for so long: a burst of clients is no attack."""
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
"""What is still read, and dropped, of a client that was refused: closing at once would often lose it the answer."""


class _Refused(Exception):
    """Raised from within the parser's callbacks: the request goes no further."""

    def __init__(self, status: int, error: CfsError) -> None:
        super().__init__(error.detail)
        self.status = status
        self.error = error


class Connections:
    """The connections that have no whole request, in the order in which they began to wait for one."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._unfinished: dict[Connection, None] = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._unfinished)

    def protocol(self, **parts: Any) -> "Connection":
        """Make the protocol of a new connection; uvicorn calls it."""
        return Connection(self, **parts)

    def begin(self, connection: "Connection") -> None:
        """Count a connection that has begun to send a request, or is to."""
        self._unfinished[connection] = None
        self._of_address[connection.address] += 1

    def end(self, connection: "Connection") -> None:
        """Count it no more."""
        if connection in self._unfinished:
            del self._unfinished[connection]
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def crowded(self, address: str) -> bool:
        """Tell whether an address has more unfinished connections than it may have for long."""
        return address != "" and self._of_address[address] > self.limits.unfinished

    def sweep(self, now: float) -> None:
        """Refuse what is late, and of each address what came last when it has too many."""
        lasting: Counter[str] = Counter()
        for connection in list(self._unfinished):
            if (late := connection.late(now)) is not None:
                connection.refuse(408, late)
            elif connection.address and now - connection.since > _CROWD_SECONDS:
                lasting[connection.address] += 1
                if lasting[connection.address] > self.limits.unfinished:
                    connection.refuse_crowd()

    def address_of(self, client: tuple[str, int] | None) -> str:
        """Name whom a connection is counted for; empty for a trusted proxy, which counts its own clients.

        In IPv6 it is the network of 64 bits: that is what one customer gets.
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


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with bounds.

    `since` is when the connection began to wait for the present request. `_overhead` are the bytes that came since
    then, or since the last piece of the body: of a head, of chunks' extensions, of trailers.
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
        self._overhead = self._size = self._fields = self._discarded = 0
        self._running: RequestResponseCycle | None = None
        self._refusal: tuple[int, CfsError] | None = None
        self.address = ""
        self.since = self._progress = 0.0

    # -- what asyncio calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.address = self._connections.address_of(self.client)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.end(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, as long as it is within the bounds."""
        if self._deaf:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if not self._waiting:
            self._begin()
        self._silent = False
        self._overhead += len(data)
        try:
            self.parser.feed_data(data)
            if self._overhead > self._limits.head_bytes:
                self._refuse_overhead()
            if self._in_head and self._overhead and self._connections.crowded(self.address):
                self.refuse_crowd()
        except _Refused as refused:
            self.refuse(refused.status, refused.error)
        except httptools.HttpParserUpgrade:  # an offer that is declined: the request is answered, and is the last
            self.cycle.keep_alive = False
            self._stop_listening()
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Refused):
                self.refuse(cause.status, cause.error)
            else:
                self.refuse(400, InvalidRequest("this is no valid HTTP/1.1 request"))
        else:
            if not self._begun and not self._overhead:
                self._finish()

    # -- what the parser calls ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        self._begun = True
        self._size = self._fields = 0
        self.since = self.loop.time()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the target."""
        self._size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field; one of a trailer is dropped: nothing here reads them."""
        self._fields += 1
        self._size += len(name) + len(value) + 4
        if self._fields > self._limits.head_fields:
            raise _Refused(431, TooLarge(f"a request has {self._limits.head_fields} header fields at most"))
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let the application have the request."""
        if self._size > self._limits.head_bytes:
            self._refuse_overhead()
        if self.parser.get_http_version() not in _VERSIONS:
            raise _Refused(400, InvalidRequest("this server speaks HTTP/1.1 and HTTP/1.0"))
        if self.parser.should_upgrade():
            self._require_no_upgrade()
        if len(self.pipeline) >= _PIPELINED:
            raise _Refused(429, TooMany(f"{_PIPELINED} requests at most are taken ahead of their answers"))
        self._in_head, self._overhead = False, 0
        self._progress = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; one that nobody wants any more is no progress."""
        self._overhead = 0
        if not self.cycle.response_complete:
            self._progress = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is there."""
        self._begun, self._in_head, self._overhead = False, True, 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on with the next request; behind the last one that came whole, a refusal is due."""
        super().on_response_complete()
        refusal, running = self._refusal, self._running
        last = not self.pipeline and running is not None and running.response_complete
        if refusal is not None and last and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._answer(*refusal)

    # -- bounds ---------------------------------------------------------------------------------------------------

    def late(self, now: float) -> Timeout | None:
        """Say what the client is late with; what the server itself holds up is not the client's."""
        if self.flow.read_paused or (not self._in_head and self.cycle.waiting_for_100_continue):
            self.since = self._progress = now
        elif self._in_head and now - self.since > self._limits.head_seconds:
            return Timeout(f"the head of a request must be there within {self._limits.head_seconds:g} seconds")
        elif not self._in_head and now - self._progress > self._limits.stall_seconds:
            return Timeout(f"nothing more of the body has come for {self._limits.stall_seconds:g} seconds")
        return None

    def refuse_crowd(self) -> None:
        """Refuse a connection of an address that has too many."""
        most = self._limits.unfinished
        self.refuse(429, TooMany(f"one address may have {most} unfinished requests at most", retry_after=1))

    def refuse(self, status: int, error: CfsError) -> None:
        """Answer by a problem, if it is this request's turn to be answered, and close the connection."""
        log = _log.debug if self._silent else _log.info
        log("connection.refused", client=self.client and self.client[0], status=status, reason=error.detail)
        running, in_head = self._running, self._in_head
        self._stop_listening()
        if running is None or (in_head and running.response_complete):
            self._answer(status, error)
        elif in_head or running is not self.cycle:  # after the answers to what came whole before it
            if not in_head:
                self.pipeline.popleft()
            self._refusal = (status, error)
            self.flow.pause_reading()
        else:  # its own body is what is wrong
            started, running.disconnected = running.response_started, True
            running.message_event.set()
            if started:
                self.transport.close()
            else:
                self._answer(status, error)

    def _answer(self, status: int, error: CfsError) -> None:
        if self._silent:  # it has asked for nothing
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
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _refuse_overhead(self) -> None:
        most = self._limits.head_bytes
        if self._in_head:
            raise _Refused(431, TooLarge(f"the head of a request has {most} bytes at most"))
        raise _Refused(400, InvalidRequest(f"extensions of a chunk and trailers have {most} bytes at most"))

    def _require_no_upgrade(self) -> None:
        fields = dict(self.headers)
        if b"websocket" in fields.get(b"upgrade", b"").lower():
            raise _Refused(400, InvalidRequest("there are no WebSockets here: events come as server-sent events"))
        if b"transfer-encoding" in fields or fields.get(b"content-length", b"0").strip(b"0"):
            raise _Refused(400, InvalidRequest("a request with a body cannot ask for another protocol"))

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
