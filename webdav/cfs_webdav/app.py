"""One mount as an ASGI application: WsgiDAV in a few threads, with a tree for each request (W1)."""

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

from a2wsgi import WSGIMiddleware
from wsgidav.dav_error import DAVError
from wsgidav.mw.base_mw import BaseMiddleware
from wsgidav.request_resolver import RequestResolver
from wsgidav.wsgidav_app import WsgiDAVApp

from cfs_webdav import xml
from cfs_webdav.errors import reason_of
from cfs_webdav.locks import Locks
from cfs_webdav.properties import Properties
from cfs_webdav.provider import Provider
from cfs_webdav.resources import TREE
from cfs_webdav.tree import Tree

_THREADS = 16
_WITH_XML = {"PROPFIND", "PROPPATCH", "LOCK"}
_log = logging.getLogger(__name__)
logging.getLogger("wsgidav").setLevel(logging.CRITICAL)  # it logs what clients do wrong as errors, with traces

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Describe = Callable[[int, str, Exception | None], tuple[str, bytes]]
"""Makes the body of an error from its status, the sentence, and what was raised: the media type and the bytes."""


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
        heads: list[tuple[str, list[tuple[str, str]]]] = []
        try:
            environ["wsgi.input"], environ["CONTENT_LENGTH"] = _body(environ["REQUEST_METHOD"], call)
            body = b"".join(self._dav(environ, lambda status, headers, _=None: heads.append((status, headers))))
        except DAVError as error:
            heads, body = self._refusal(error)
        status, headers = heads[-1]
        start_response(status, headers)
        return [body]

    def _refusal(self, error: DAVError) -> tuple[list[tuple[str, list[tuple[str, str]]]], bytes]:
        status = reason_of(error.value)
        if error.err_condition:
            media, body = error.get_response_page()
        else:
            media, body = self._describe(error.value, error.context_info or status, error.src_exception)
        headers = [("Content-Type", media), ("Content-Length", str(len(body))), *(error.add_headers or [])]
        return [(status, headers)], body


def _body(method: str, call: Call) -> tuple[BinaryIO, str]:
    if method not in _WITH_XML or call.size == 0:
        return call.body, str(call.size)
    document = xml.plain(call.body.read())
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
