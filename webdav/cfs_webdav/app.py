"""One mount as an ASGI application: WsgiDAV in a few threads, with a tree for each request (W1)."""

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

from a2wsgi import WSGIMiddleware
from wsgidav.dav_error import HTTP_NOT_FOUND, DAVError
from wsgidav.mw.base_mw import BaseMiddleware
from wsgidav.request_resolver import RequestResolver
from wsgidav.wsgidav_app import WsgiDAVApp

from cfs.errors import CfsError
from cfs_webdav import provider
from cfs_webdav.provider import TREE, Provider, reason_of
from cfs_webdav.storage import Locks, Properties
from cfs_webdav.tree import Tree

_THREADS = 16
_PAGE = "text/plain; charset=utf-8"
_MADE_HERE = ("Content-", "Date")
_WITH_XML = {"PROPFIND", "PROPPATCH", "LOCK"}
_log = logging.getLogger(__name__)
logging.getLogger("wsgidav").setLevel(logging.CRITICAL)  # it logs what clients do wrong as errors, with traces

_Headers = list[tuple[str, str]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Describe = Callable[[int, str, CfsError | None], tuple[str, bytes]]
"""Makes media type and body of an error response from its status, its message, and the error of the tree if any."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a request brings besides its head: who makes it, what that caller sees, and the body as a file."""

    principal: str
    tree: Tree
    body: BinaryIO
    size: int


class Mount:
    """The mount at a path like `/dav/files`: a share of its own, for the library gets confused by two in one app.

    It answers everything but GET and HEAD, which are better done without a thread each.
    """

    def __init__(self, path: str, describe: Describe) -> None:
        self._describe = describe
        self._path = path
        locks = Locks()
        self._dav = WsgiDAVApp(
            {
                "provider_mapping": {path: Provider(locks)},
                "middleware_stack": [_Defects, RequestResolver],
                "lock_storage": locks,
                "property_manager": Properties(),
                "logging": {"enable": False},
                "http_authenticator": {"accept_basic": False},
                "verbose": 0,
            }
        )
        self._wsgi = WSGIMiddleware(self._answer, workers=_THREADS)  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send, call: Call) -> None:
        """Answer one request, whose body has been received already."""
        inner = dict(scope, root_path="", query_string=b"", **{"cfs_webdav.call": call})
        await self._wsgi(inner, receive, send)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the threads."""
        self._wsgi.executor.shutdown(wait=False, cancel_futures=True)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Run the library to its end: what it answers here fits into memory, and an error may come late."""
        call: Call = environ["asgi.scope"]["cfs_webdav.call"]
        environ |= {TREE: call.tree, "wsgidav.auth.user_name": call.principal}
        environ.setdefault("HTTP_HOST", "localhost")
        heads: list[tuple[str, _Headers]] = []
        cause: CfsError | None = None
        try:
            environ["wsgi.input"], environ["CONTENT_LENGTH"] = _body(environ["REQUEST_METHOD"], call)
            body = b"".join(self._dav(environ, lambda status, headers, _=None: heads.append((status, headers))))
            status, headers = heads[-1]
        except DAVError as error:
            cause = getattr(error, "error", None)
            media, body = error.get_response_page() if error.err_condition else (_PAGE, self._sentence(error))
            status, headers = reason_of(error.value), [("Content-Type", media), *(error.add_headers or [])]
        headers, body = self._tidied(int(status[:3]), headers, body, cause)
        start_response(status, headers)
        return [body]

    def _sentence(self, error: DAVError) -> bytes:
        detail = str(error.context_info or reason_of(error.value))
        if error.value == HTTP_NOT_FOUND and detail.startswith("/"):  # the library says no more than the path
            detail = f"there is nothing at {self._path}{detail}"
        return detail.encode()

    def _tidied(self, status: int, headers: _Headers, body: bytes, cause: CfsError | None) -> tuple[_Headers, bytes]:
        """Write an error as all faces do, and leave out pages that say the status once more."""
        media = next((value for name, value in headers if name == "Content-Type"), "")
        if media.startswith("text/"):
            media, body = self._describe(status, body.decode(), cause) if status >= 400 else ("", b"")
        headers = [(name, value) for name, value in headers if not name.startswith(_MADE_HERE)]
        headers += [("Content-Type", media)] if body else []
        headers += [("Content-Length", str(len(body)))] if status != 204 else []
        return headers, body


def _body(method: str, call: Call) -> tuple[BinaryIO, str]:
    if method not in _WITH_XML or call.size == 0:
        return call.body, str(call.size)
    document = provider.plain_xml(call.body.read())
    return BytesIO(document), str(len(document))


class _Defects(BaseMiddleware):  # type: ignore[misc]
    """Lets nothing through but answers and `DAVError`s."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            yield from self.next_app(environ, start_response)
        except DAVError:
            raise
        except Exception as error:
            _log.exception("a defect in %s %s", environ["REQUEST_METHOD"], environ["PATH_INFO"])
            raise DAVError(500, "the server has a defect; its log has the details") from error
