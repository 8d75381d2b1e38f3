"""Checks every request before routing: decodes the path, limits the body, authenticates, logs (H5, H7).

This is the outermost ASGI layer. It decodes the path strictly, because uvicorn replaces invalid UTF-8. It limits the
body, answers HEAD as GET without a body, authenticates the caller and assigns a request id. It logs and counts the
request, and converts every exception to an error response.
"""

import asyncio
import ipaddress
import re
import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, unquote_to_bytes

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cfs.errors import CfsError, Forbidden, InvalidRequest, ServerError, TooLarge, Unauthorized
from cfs.transports import tracing
from cfs_server.access.auth import Principals
from cfs_server.access.tokens import PREFIX, masked
from cfs_server.domain.authors import Author, author
from cfs_server.http import request_tracing
from cfs_server.http.content import Digests, check_content
from cfs_server.http.errors import problem_response
from cfs_server.http.metrics import Metrics
from cfs_server.journal.journal import Journal
from cfs_server.protocols.errors import protocol_at

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# Access to a server without tokens: programs of this machine may call, web pages of other sites may not.
#
# A browser lets any page send plain text to a loopback address (cross-site request). A page whose name resolves to a
# loopback address can also read the response (DNS rebinding). Two headers that a page cannot forge show this: `Origin`
# is the site of the page, `Host` is the name in the URL. A browser sends no `Origin` when a page only loads an image or
# a frame. In that case `Sec-Fetch-Site` shows that the request comes from another site.
#
# A link from another site may open the dashboard: it fills the whole window, and its files contain no private data.
# Links to other paths are refused, because the browser would send its stored credentials with them.

_OWN_SITE = frozenset({b"same-origin", b"none"})
"""`none` is a request by the user, for example a typed address. `same-site` is another port of this machine."""


def is_loopback(host: str) -> bool:
    """Return whether an address, or the name `localhost`, refers to this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_caller(
    headers: Mapping[bytes, bytes], allowed_hosts: frozenset[str] | None, *, is_page: bool = False
) -> None:
    """Refuse requests from pages of other sites and requests for unknown host names. Raises `Forbidden`.

    `allowed_hosts` are accepted in addition to the loopback names; None accepts any name. Programs send neither
    `Origin` nor `Sec-Fetch-Site`. A request without `Host` (HTTP/1.0) does not come from a browser. `is_page` is true
    for a GET of the dashboard, which a link of another site may open.
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
    """Return whether the request loads a whole window, not a frame in a page of another site."""
    where = headers.get(b"sec-fetch-mode", b"").lower(), headers.get(b"sec-fetch-dest", b"").lower()
    return where == (b"navigate", b"document")


def _name(host: str) -> str:
    """Return the host without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


_log = structlog.get_logger("cfs.request")

CONTEXT = "cfs.context"
"""The key of the context that answers a request, in its scope."""

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_DISCARDED_BODIES = 8
_DISCARD_SECONDS = 10.0
_READING = frozenset({"GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT"})
_READING_PATHS = frozenset({"/v1/render", "/v1/tokens", "/v1/messages/count_tokens", "/api/show"})
_FREEING = frozenset({"DELETE", "UNLOCK"})
"""Methods that go through on a full disk, because they free space."""
_FILES = ("/v1/files/workspaces/", "/dav/workspaces/")
_CONTENT = ("/v1/files/workspaces/", "/dav/")
_RENDER = "/v1/render"
_RENDER_BYTES = 1 << 20
_DAV = "/dav"
_DAV_BYTES = 64 << 10
"""A request that lists properties or asks for a lock is a few hundred bytes of XML."""
_AUTHOR_CHARACTERS = 256
_MODELS = b"/v1/models/"
"""Names of models may contain a `/`, and clients encode it."""
_QUIET = frozenset({"/health", "/healthz", "/readyz", "/metrics"})
_OPEN = frozenset({"/", "/health", "/healthz", "/readyz", "/openapi.json"})
_OPEN_BELOW = "/dashboard/"
"""Paths that anyone may read. They contain no session data."""


class RequestContext(Protocol):
    """What every request needs of its context."""

    @property
    def principals(self) -> Principals:
        """Those who may send requests."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Where requests are counted."""
        ...

    @property
    def journal(self) -> Journal | None:
        """Where changes are stored."""
        ...


class RequestMiddleware:
    """ASGI middleware around the application.

    A request that names no context belongs to that of the application. `put_checks` raise the error of a PUT below a
    path that its caller's grants refuse, whatever its body is.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        put_checks: Mapping[str, Callable[[Scope], None]],
        body_bytes: int,
        file_bytes: int,
        allowed_hosts: frozenset[str] | None,
    ) -> None:
        self._app = app
        self._put_checks = put_checks
        self._body_bytes = body_bytes
        self._file_bytes = file_bytes
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Other scopes pass unchanged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = HttpExchange(scope, send)
        context: RequestContext = scope.setdefault(CONTEXT, scope["app"].state.cfs)
        exchange.traced = tracing.is_on()
        recorded = request_tracing.request(scope, exchange.path) if exchange.traced else nullcontext()
        with recorded as exchange.span:
            await self._handle(exchange, context, scope, receive)

    async def _handle(self, exchange: "HttpExchange", context: RequestContext, scope: Scope, receive: Receive) -> None:
        inner = dict(scope, method="GET") if scope["method"] == "HEAD" else scope
        inner["cfs.head"] = scope["method"] == "HEAD"
        try:
            headers = dict(scope["headers"])
            inner["path"] = path = plain_path(_raw_path(scope))
            is_page = inner["method"] == "GET" and (path == "/" or path.startswith(_OPEN_BELOW))
            check_caller(headers, self._allowed_hosts, is_page=is_page)
            decode_query(scope["query_string"])
            self._admit(exchange, context.principals, headers, inner)
            for parent, check in self._put_checks.items():
                if inner["method"] == "PUT" and path.startswith(parent):
                    check(inner)
            if not only_reads(scope) and (journal := context.journal) is not None:
                exchange.changes(journal, frees=scope["method"] in _FREEING, is_file=path.startswith(_FILES))
            digests = check_content(scope["headers"])
            body = Body(receive, self._body_limit(scope["method"], path), digests)
            await body.check_announced(headers)
            await self._app(inner, body.receive, exchange.send)
        except CfsError as error:
            await exchange.fail(error, inner, receive)
        except Exception:  # noqa: BLE001 - a defect: the caller gets an error, the log gets the traceback
            _log.exception("request.defect", id=exchange.id, method=exchange.method, path=exchange.path)
            await exchange.fail(ServerError("the server has a defect; its log has the details"), inner, receive)
        finally:
            self._done(exchange, context.metrics, inner)

    def _body_limit(self, method: str, path: str) -> int:
        if method == "PUT" and path.startswith(_CONTENT):
            return self._file_bytes
        if path == _RENDER:
            return min(_RENDER_BYTES, self._body_bytes)
        return _DAV_BYTES if path.startswith(_DAV) else self._body_bytes

    def _admit(
        self, exchange: "HttpExchange", principals: Principals, headers: MutableMapping[bytes, bytes], scope: Scope
    ) -> None:
        """Authenticate the caller and check its rate limit. Most paths require a caller (G9)."""
        principal = principals.authenticate(credentials_of(headers))
        if principal is None:
            if scope["path"] in _OPEN or scope["path"].startswith(_OPEN_BELOW):
                return
            raise Unauthorized("this server wants a token: send it as 'Authorization: Bearer TOKEN', or as X-Api-Key")
        scope["cfs.principal"] = principal
        exchange.principal = principal.name  # set first, so that the log names a caller that exceeds its limit
        agent, call = headers.get(b"x-cfs-agent"), headers.get(b"x-cfs-tool-call")
        author.set(Author(principal.name, _given(agent), _given(call)))
        principal.traffic.rate.take()

    def _done(self, exchange: "HttpExchange", metrics: Metrics, scope: Scope) -> None:
        route = getattr(scope.get("route"), "path_format", "none")
        answered = exchange.answered_at or time.perf_counter()
        seconds = answered - exchange.began_at
        metrics.request(exchange.method, route, exchange.status, seconds)
        if exchange.traced:
            request_tracing.answered(exchange.span, exchange.method, route, exchange.status, seconds, exchange.id)
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


def credentials_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the value of `Authorization` that a request sends, or means; None without credentials."""
    authorization = headers.get(b"authorization")
    if authorization is None and (key := headers.get(b"x-api-key")):
        authorization = b"Bearer " + key  # clients of Anthropic send their key so
    return None if authorization is None else authorization.decode("latin-1")


def only_reads(scope: Scope) -> bool:
    """Return whether a request changes nothing. It then needs no journal."""
    return scope["method"] in _READING or scope["path"] in _READING_PATHS


def _given(value: bytes | None) -> str | None:
    return unquote(value.decode("latin-1"), errors="replace")[:_AUTHOR_CHARACTERS] if value else None


class HttpExchange:
    """One request and its response. What it has changed is durable before the response begins."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.began_at = time.perf_counter()
        self.answered_at: float | None = None
        self.principal: str | None = None
        self.status = 499  # the status while nothing has been sent: the client disconnected
        self.method = scope["method"]
        self.path = _shown(_raw_path(scope).decode("latin-1"))
        requested = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        self.id = requested.decode() if _REQUEST_ID.fullmatch(requested) else uuid.uuid4().hex
        self.traced = False
        self.span: Span | None = None
        self._journal: Journal | None = None
        self._frees = False
        self._scope = scope
        self._send = send
        self._replaced = False

    def changes(self, journal: Journal, *, frees: bool, is_file: bool) -> None:
        """Require that changes can be stored before the request is handled, and wait for them before the response.

        A file that is deleted is gone from the disk whether the journal can write or not, which may need its space.
        """
        if frees and is_file and journal.problem is not None:
            return
        journal.require_writable(frees=frees)
        self._journal, self._frees = journal, frees

    async def send(self, message: Message) -> None:
        """Send a part of the application's response, or an error instead if its changes cannot be stored.

        The error is not raised here, because the application believes that its response has begun.
        """
        if message["type"] == "http.response.start" and self._journal is not None:
            try:
                await self._journal.durable(frees=self._frees)
            except CfsError as error:
                self._replaced = True
                await problem_response(error, self._scope["path"])(self._scope, _nothing, self._transmit)
        if not self._replaced:
            await self._transmit(message)

    async def _transmit(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answered_at, self.status = time.perf_counter(), message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
            if (protocol := protocol_at(self._scope["path"])) is not None and protocol.request_id is not None:
                message["headers"].append((protocol.request_id.encode(), self.id.encode()))
        await self._send(message)

    async def fail(self, error: CfsError, scope: Scope, receive: Receive) -> None:
        """Send a problem document. If a response has begun, uvicorn closes the connection instead."""
        if self.answered_at is None:
            await problem_response(error, scope["path"])(scope, receive, self._transmit)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


class Body:
    """The body of one request. Its bytes are counted, and compared with their digest, as they arrive."""

    def __init__(self, receive: Receive, limit: int, digests: Digests) -> None:
        self._receive = receive
        self._limit = limit
        self._digests = digests
        self._size = 0

    async def check_announced(self, headers: MutableMapping[bytes, bytes]) -> None:
        """Refuse a body whose announced length exceeds the limit."""
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            if headers.get(b"expect", b"").lower() != b"100-continue":  # else the body has not been sent yet
                await self._discard()
            raise self._too_large()

    async def receive(self) -> Message:
        """Return the next part if the body is within the limit."""
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            if message.get("more_body", False):
                await self._discard()
            raise self._too_large()
        if message["type"] == "http.request":
            self._digests.update(message.get("body", b""))
            if not message.get("more_body", False):
                self._digests.check()
        return message

    async def _discard(self) -> None:
        """Read the rest for a limited time: most clients lose a response that arrives during an upload."""
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
    """Decode a path as received. Raises `InvalidRequest` if it is not plain text."""
    path = _decode(raw, "path")
    if b"%2f" in raw.lower() and not raw.startswith(_MODELS):
        raise InvalidRequest(
            "a '/' in the path must not be encoded: no id contains one, and sub-sessions use it plainly"
        )
    if _CONTROL.search(path):
        raise InvalidRequest("the path must not contain control characters")
    return path


def decode_query(raw: bytes) -> str:
    """Check that the percent-encoded query is valid UTF-8."""
    return _decode(raw, "query")


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _shown(path: str) -> str:
    """Return a path for the log: percent-encoded, so that it cannot forge a line, and without tokens."""
    plain = unquote(path, "latin-1")
    return path if PREFIX not in plain else quote(masked(plain), safe="/*", encoding="latin-1")


def _decode(raw: bytes, part: str) -> str:
    if _BAD_ESCAPE.search(raw):
        raise InvalidRequest(f"the {part} has a '%' that begins no escape; write %25 for the character itself")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the {part} is not UTF-8 behind its escapes") from None
