"""Runs one WebDAV mount as an ASGI application: WsgiDAV in a thread pool, with a tree for each request (W1)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

from a2wsgi import WSGIMiddleware
from wsgidav.dav_error import HTTP_CREATED, HTTP_NOT_FOUND, DAVError
from wsgidav.mw.base_mw import BaseMiddleware
from wsgidav.request_resolver import RequestResolver
from wsgidav.wsgidav_app import WsgiDAVApp

from cfs.errors import CfsError, Unavailable
from cfs_webdav import provider
from cfs_webdav.provider import CREATED, TREE, TreeProvider, reason_of
from cfs_webdav.storage import MountLocks, PersistentDocuments, Properties
from cfs_webdav.tree import MountView

_THREADS = 16
_PAGE = "text/plain; charset=utf-8"
_MADE_HERE = ("Content-", "Date")
_WITH_XML = {"PROPFIND", "PROPPATCH", "LOCK"}
_log = logging.getLogger(__name__)
logging.getLogger("wsgidav").setLevel(logging.CRITICAL)  # it logs client errors with stack traces

_Headers = list[tuple[str, str]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Describe = Callable[[int, str, CfsError | None], tuple[str, bytes]]
"""Returns media type and body of an error response, given its status, message and the tree's error, if any."""


@dataclass(frozen=True, slots=True)
class WebDavRequest:
    """A request besides its headers: the caller, the tree that the caller sees, and the body as a file."""

    principal: str
    tree: MountView
    body: BinaryIO
    size: int


class Mount:
    """The mount at a path such as `/dav/files`. Each mount has its own WsgiDAV app, which supports one share only.

    It handles all methods except GET and HEAD, which need no thread and are handled elsewhere.
    """

    def __init__(self, path: str, describe: Describe) -> None:
        self._describe = describe
        self._path = path
        self._locks, self._properties = MountLocks(), Properties()
        self._dav = WsgiDAVApp(
            {
                "provider_mapping": {path: TreeProvider(self._locks)},
                "middleware_stack": [_Defects, RequestResolver],
                "lock_storage": self._locks,
                "property_manager": self._properties,
                "logging": {"enable": False},
                "http_authenticator": {"accept_basic": False},
                "verbose": 0,
            }
        )
        self._wsgi = WSGIMiddleware(self._answer, workers=_THREADS)  # type: ignore[arg-type]
        self._closed = False

    def load(self, locks: PersistentDocuments, properties: PersistentDocuments) -> None:
        """Restore the locks and dead properties of an earlier process, and keep changes from now on."""
        self._locks.load(locks)
        self._properties.load(properties)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, call: WebDavRequest) -> None:
        """Answer one request. Its body has already been received. Raises `Unavailable` if no thread has begun it
        before `close`."""
        if self._closed:
            raise _shutting_down()
        inner = dict(scope, root_path="", query_string=b"", **{"cfs_webdav.call": call})
        task = asyncio.current_task()
        try:
            await self._wsgi(inner, receive, send)  # type: ignore[arg-type]
        except asyncio.CancelledError:
            if task is not None and not task.cancelling():  # it waited for a thread, and `close` has removed it
                raise _shutting_down() from None
            raise

    def close(self) -> None:
        """Shut down the thread pool. Requests that wait for a thread are refused, as are later ones."""
        self._closed = True
        self._wsgi.executor.shutdown(wait=False, cancel_futures=True)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Collect the whole response: it fits into memory, and the library may raise while it writes the body."""
        call: WebDavRequest = environ["asgi.scope"]["cfs_webdav.call"]
        environ |= {TREE: call.tree, "wsgidav.auth.user_name": call.principal}
        environ.setdefault("HTTP_HOST", "localhost")
        heads: list[tuple[str, _Headers]] = []
        cause: CfsError | None = None
        try:
            environ["wsgi.input"], environ["CONTENT_LENGTH"] = _body(environ["REQUEST_METHOD"], call)
            body = b"".join(self._dav(environ, lambda status, headers, _=None: heads.append((status, headers))))
            status, headers = heads[-1]
            if CREATED in environ:
                status = reason_of(HTTP_CREATED)
        except DAVError as error:
            cause = getattr(error, "error", None)
            media, body = error.get_response_page() if error.err_condition else (_PAGE, self._sentence(error))
            status, headers = reason_of(error.value), [("Content-Type", media), *(error.add_headers or [])]
        headers, body = self._tidied(int(status[:3]), headers, body, cause)
        start_response(status, headers)
        return [body]

    def _sentence(self, error: DAVError) -> bytes:
        detail = str(error.context_info or reason_of(error.value))
        if error.value == HTTP_NOT_FOUND and detail.startswith("/"):  # the library's message is only the path
            detail = f"there is nothing at {self._path}{detail}"
        return detail.encode()

    def _tidied(self, status: int, headers: _Headers, body: bytes, cause: CfsError | None) -> tuple[_Headers, bytes]:
        """Write an error in the format of all interfaces, and drop bodies that only repeat the status."""
        media = next((value for name, value in headers if name == "Content-Type"), "")
        if media.startswith("text/"):
            media, body = self._describe(status, body.decode(), cause) if status >= 400 else ("", b"")
        headers = [(name, value) for name, value in headers if not name.startswith(_MADE_HERE)]
        headers += [("Content-Type", media)] if body else []
        headers += [("Content-Length", str(len(body)))] if status != 204 else []
        return headers, body


def _shutting_down() -> Unavailable:
    return Unavailable("the server is shutting down", retry_after=5)


def _body(method: str, call: WebDavRequest) -> tuple[BinaryIO, str]:
    if method not in _WITH_XML or call.size == 0:
        return call.body, str(call.size)
    document = provider.plain_xml(call.body.read())
    return BytesIO(document), str(len(document))


class _Defects(BaseMiddleware):  # type: ignore[misc]
    """Turns unexpected exceptions into a `DAVError` (500) and logs them."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            yield from self.next_app(environ, start_response)
        except DAVError:
            raise
        except Exception as error:
            _log.exception("internal error in %s %s", environ["REQUEST_METHOD"], environ["PATH_INFO"])
            raise DAVError(500, "internal server error; the server's log has the details") from error
