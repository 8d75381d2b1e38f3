"""What every request passes before it is routed: bytes become text once, and too much is refused (H5, H7).

Plain ASGI, outermost. It decodes the path strictly (the server below replaces what is not UTF-8), caps the body,
answers HEAD as GET without a body, finds out who calls, names the request by an id, logs and counts it, and lets no
exception through.
"""

import asyncio
import ipaddress
import re
import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cfs.errors import CfsError, Forbidden, InvalidRequest, ServerError, TooLarge, Unauthorized
from cfs_server.access.auth import Principal
from cfs_server.access.tokens import masked
from cfs_server.errors import problem_response
from cfs_server.metrics import Metrics

# Who may call a server that has no tokens: programs of this machine, and no web page of another site.
#
# A browser lets any page post plain text to a loopback address (a cross-site request), and a page whose name was made
# to point there may read as well (DNS rebinding). Both show in headers that a page cannot forge: `Origin` names the
# page's site, `Host` the name that was called. A browser leaves `Origin` out of what a page merely loads, an image or a
# frame; there `Sec-Fetch-Site` says that another site asks.
#
# A link from elsewhere to the dashboard still opens it: the whole window goes there, and its files say nothing of
# anybody. A link to anything else does not, for it would be asked with the credentials that the browser keeps.

_OWN_SITE = frozenset({b"same-origin", b"none"})
"""`none` is the user: an address that was typed, a bookmark. `same-site` is another port of this machine."""


def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, means this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_caller(
    headers: Mapping[bytes, bytes], allowed_hosts: frozenset[str] | None, *, is_page: bool = False
) -> None:
    """Refuse requests of other sites' pages, and those for a name that is not ours; raises `Forbidden`.

    `allowed_hosts` are names besides the loopback ones; None allows any name. Programs send no `Origin` and no
    `Sec-Fetch-Site`, and one without `Host` (HTTP/1.0) is no browser. `is_page` is true for a read of the dashboard,
    which a link of another site may open.
    """
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = _name(host)
    if allowed_hosts is not None and host and not (is_loopback(name) or name in allowed_hosts):
        raise Forbidden(
            f"this server is not called {name[:80]!r}: call it localhost, or allow the name by --allowed-hosts"
        )
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
        raise Forbidden("requests from pages of another site are refused")
    if headers.get(b"sec-fetch-site", b"none").lower() not in _OWN_SITE and not (is_page and _opens_window(headers)):
        raise Forbidden("requests from pages of another site are refused; a link may open the dashboard only")


def _opens_window(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a whole window goes there, and not a frame within another site's page."""
    where = headers.get(b"sec-fetch-mode", b"").lower(), headers.get(b"sec-fetch-dest", b"").lower()
    return where == (b"navigate", b"document")


def _name(host: str) -> str:
    """Cut the port off."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


_log = structlog.get_logger("cfs.request")

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_DISCARDED_BODIES = 8
_DISCARD_SECONDS = 10.0
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_OPEN = frozenset({"/", "/healthz", "/readyz", "/openapi.json"})
_OPEN_BELOW = "/dashboard/"
"""What anybody may read: it says nothing of anybody's sessions."""


class RequestMiddleware:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        authenticate: Callable[[str | None], Principal | None],
        body_limit: Callable[[str, str], int],
        allowed_hosts: frozenset[str] | None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._authenticate = authenticate
        self._body_limit = body_limit
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; other kinds of scope pass untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, send)
        inner = dict(scope, method="GET") if scope["method"] == "HEAD" else scope
        inner["cfs.head"] = scope["method"] == "HEAD"
        try:
            headers = dict(scope["headers"])
            inner["path"] = path = plain_path(_raw_path(scope))
            is_page = inner["method"] == "GET" and (path == "/" or path.startswith(_OPEN_BELOW))
            check_caller(headers, self._allowed_hosts, is_page=is_page)
            decode_query(scope["query_string"])
            self._admit(exchange, headers, inner)
            body = Body(receive, self._body_limit(scope["method"], inner["path"]))
            await body.check_announced(headers)
            await self._app(inner, body.receive, exchange.send)
        except CfsError as error:
            await exchange.fail(error, inner, receive)
        except Exception:  # noqa: BLE001 - a defect: the caller gets an answer, the operator the trace
            _log.exception("request.defect", id=exchange.id, method=exchange.method, path=exchange.path)
            await exchange.fail(ServerError("the server has a defect; its log has the details"), inner, receive)
        finally:
            self._done(exchange, inner)

    def _admit(self, exchange: "Exchange", headers: MutableMapping[bytes, bytes], scope: Scope) -> None:
        """Find out who calls, and whether that is not too often. Most paths need a caller (G9)."""
        authorization = headers.get(b"authorization")
        principal = self._authenticate(None if authorization is None else authorization.decode("latin-1"))
        if principal is None:
            if scope["path"] in _OPEN or scope["path"].startswith(_OPEN_BELOW):
                return
            raise Unauthorized("this server wants a token: send it as 'Authorization: Bearer TOKEN'")
        scope["cfs.principal"] = principal
        exchange.principal = principal.name  # first, so that the log says who calls too often
        principal.rate.take()

    def _done(self, exchange: "Exchange", scope: Scope) -> None:
        route = getattr(scope.get("route"), "path_format", "none")
        answered = exchange.answered_at or time.perf_counter()
        self._metrics.request(exchange.method, route, exchange.status, answered - exchange.began_at)
        write = _log.debug if scope["path"] in _QUIET else _log.info
        write(
            "request",
            id=exchange.id,
            principal=exchange.principal,
            method=exchange.method,
            path=exchange.path,
            status=exchange.status,
            ms=round((time.perf_counter() - exchange.began_at) * 1000, 1),
        )


class Exchange:
    """One request and the answer to it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.began_at = time.perf_counter()
        self.answered_at: float | None = None
        self.principal: str | None = None
        self.status = 499  # as long as nothing has been sent: the client left
        self.method = scope["method"]
        self.path = _shown(_raw_path(scope).decode("latin-1"))
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        self.id = given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self._send = send

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on, with the request's id in its head."""
        if message["type"] == "http.response.start":
            self.answered_at, self.status = time.perf_counter(), message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
        await self._send(message)

    async def fail(self, error: CfsError, scope: Scope, receive: Receive) -> None:
        """Answer by a problem, unless an answer has begun: then the server cuts the connection."""
        if self.answered_at is None:
            await problem_response(error, scope["path"])(scope, receive, self.send)


class Body:
    """The body of one request, counted while it comes in."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0

    async def check_announced(self, headers: MutableMapping[bytes, bytes]) -> None:
        """Refuse a body whose announced length is over the limit."""
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            if headers.get(b"expect", b"").lower() != b"100-continue":  # then the client has not begun to send it
                await self._discard()
            raise self._too_large()

    async def receive(self) -> Message:
        """Pass the next part on, as long as the body is within the limit."""
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            if message.get("more_body", False):
                await self._discard()
            raise self._too_large()
        return message

    async def _discard(self) -> None:
        """Read on for a while: an answer in the middle of an upload is lost to most clients."""
        message: MutableMapping[str, Any] = {"more_body": True}
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while message.get("more_body", False) and self._size <= self._limit * _DISCARDED_BODIES:
                    message = await self._receive()
                    self._size += len(message.get("body", b""))
        except TimeoutError:
            return

    def _too_large(self) -> TooLarge:
        return TooLarge(f"a request's body has {self._limit} bytes at most")


def plain_path(raw: bytes) -> str:
    """Decode a path as it came over the wire; raises `InvalidRequest` for what is no plain text."""
    path = _decode(raw, "path")
    if b"%2f" in raw.lower():
        raise InvalidRequest(
            "a '/' in the path must not be encoded: no id contains one, and sub-sessions use it plainly"
        )
    if _CONTROL.search(path):
        raise InvalidRequest("the path must not contain control characters")
    return path


def decode_query(raw: bytes) -> str:
    """Check that the query is UTF-8 behind its escapes."""
    return _decode(raw, "query")


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _shown(path: str) -> str:
    """Write a path for the log: with its escapes, so that no line can be forged, and without anybody's token."""
    plain = unquote(path, "latin-1")
    return path if masked(plain) == plain else quote(masked(plain), safe="/*", encoding="latin-1")


def _decode(raw: bytes, part: str) -> str:
    if _BAD_ESCAPE.search(raw):
        raise InvalidRequest(f"the {part} has a '%' that begins no escape; write %25 for the character itself")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the {part} is not UTF-8 behind its escapes") from None
