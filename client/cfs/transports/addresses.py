"""Resolves the server's address, token and timeouts for both HTTP clients. No I/O."""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from cfs import api
from cfs.contract.errors import CfsError, InvalidRequest, Timeout, Unreachable
from cfs.state.stream import growing_pause
from cfs.transports import tracing
from cfs.transports.base import TOKEN_VARIABLE, URL_VARIABLE
from cfs.transports.deadlines import Deadline
from cfs.transports.proxies import proxy_of

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
HEARTBEAT_SECONDS = 60.0
"""Maximum silence of a stream: the server sends a comment every few seconds, so the connection is dead after that."""

RETRIES = 3
LOST_RETRIES = 10
"""Attempts in all after the answer to a write was lost; together they take nine seconds."""
_NOT_READY = 503
_SHORTEST = 0.01
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/|$)|\[[0-9a-fA-F:.]+\]:\d+(/|$)")


@dataclass(frozen=True, slots=True)
class Address:
    """A server's URL, the headers of every request to it, and the proxy in between, if there is one."""

    url: str
    headers: Mapping[str, str]
    proxy: str | None

    @property
    def verify(self) -> ssl.SSLContext | bool:
        """How to check the server's certificate; `SSL_CERT_FILE` and `SSL_CERT_DIR` name other authorities."""
        return httpx.create_ssl_context() if self.url.startswith("https:") else False


def address_of(url: str | None = None, token: str | None = None) -> Address:
    """Build an address; `CFS_URL` and `CFS_TOKEN` are the defaults. Raises `InvalidRequest` if there is no URL.

    A host with a port, such as `localhost:8000`, is reached by HTTP. An empty token is no token, whatever the variable
    says.
    """
    url = (url or os.environ.get(URL_VARIABLE, "")).rstrip("/")
    if _HOST_AND_PORT.match(url):
        url = f"http://{url}"
    if not _is_server(url):
        raise InvalidRequest(
            f"{url!r} is not the URL of a server: give one such as http://127.0.0.1:8000, or set {URL_VARIABLE}"
        )
    headers = api.authorization(os.environ.get(TOKEN_VARIABLE) if token is None else token)
    return Address(url, headers, proxy_of(url))


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port of more than 65535, or half of an address
        return False


def time_limits(request: api.Request, answer_seconds: float) -> httpx.Timeout:
    """Return the timeouts of a request; its response may also take the time that the server was asked to wait."""
    return httpx.Timeout(answer_seconds, connect=CONNECT_SECONDS, read=answer_seconds + request.wait_seconds)


def stream_limits(deadline: Deadline) -> httpx.Timeout:
    """Return the timeouts of a stream: silence means that its connection is dead or its deadline has passed."""
    silence = min(HEARTBEAT_SECONDS, max(deadline.left, _SHORTEST))
    return httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=silence)


def arguments(request: api.Request, limits: httpx.Timeout) -> dict[str, Any]:
    """Convert a request to the arguments of httpx; its headers also name the author and the active trace."""
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.params),
        "headers": {**tracing.propagated(), **api.author(), **request.headers},
        "content": request.body,
        "timeout": limits,
    }


def was_sent(error: Exception) -> bool:
    """Return whether the server may have received the request that failed with this error."""
    return not isinstance(error, _NOT_SENT)


class Attempts:
    """Decides whether a failed request is sent again, and after which pause (C9).

    A request that did not reach a server, or only reads, is sent a few times. A write with a key whose answer was lost
    is sent for longer, until a server says what came of it: the first one may have been restarted.
    """

    def __init__(self, request: api.Request) -> None:
        self._request = request
        self._failures = 0
        self._lost: httpx.HTTPError | None = None

    def pause(self, error: httpx.HTTPError | httpx.InvalidURL) -> float | None:
        """Return the seconds to wait before the next attempt; None if the error is final."""
        lost = was_sent(error)
        if lost and not (
            self._request.repeatable and isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
        ):
            return None
        if lost and not self._request.safe and isinstance(error, httpx.HTTPError):
            self._lost = error
        return self._next()

    def pause_after(self, status: int, retry_after: str = "") -> float | None:
        """Return the same for a response, whose `Retry-After` is given.

        Only a server that is not ready is asked again: after a lost answer, or when it stops during a read that waits.
        """
        if status != _NOT_READY:
            return None
        if self._lost is not None:
            return self._next()
        if not (self._request.safe and self._request.wait_seconds and retry_after.isascii() and retry_after.isdigit()):
            return None
        return None if self._next() is None else min(float(retry_after), self._request.wait_seconds)

    def cause(self, error: httpx.HTTPError | httpx.InvalidURL) -> httpx.HTTPError | httpx.InvalidURL:
        """Return the error to report: the lost answer if there was one, because the effect is not known."""
        return self._lost or error

    def _next(self) -> float | None:
        self._failures += 1
        if self._failures >= (RETRIES if self._lost is None else LOST_RETRIES):
            return None
        return growing_pause(self._failures)


def error_from(error: httpx.HTTPError | httpx.InvalidURL, request: api.Request, url: str) -> CfsError:
    """Convert the httpx error of a failed request."""
    what = f"{request.method} {request.path}"
    why = str(error) or type(error).__name__
    if isinstance(error, _NOT_SENT):
        return Unreachable(f"no server answers at {url} ({why}): start one with `cfs serve`, or give another URL")
    if isinstance(error, httpx.TimeoutException):
        return Timeout(f"{url} did not answer {what} in time")
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return InvalidRequest(f"{url!r} is not the URL of a server: {why}")
    return _lost(error, request, url)


def lost_stream(error: httpx.HTTPError | httpx.InvalidURL, request: api.Request, url: str) -> CfsError:
    """Convert the httpx error that ended a stream, where silence is a lost connection, too."""
    if isinstance(error, httpx.ReadTimeout):
        return _lost(error, request, url)
    return error_from(error, request, url)


def _lost(error: Exception, request: api.Request, url: str) -> CfsError:
    maybe = "" if request.safe else "; whether it was carried out is not known"
    why = str(error) or type(error).__name__
    what = f"{request.method} {request.path}"
    return Unreachable(f"the connection to {url} was lost during {what} ({why}){maybe}")
