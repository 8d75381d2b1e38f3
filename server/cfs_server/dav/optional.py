"""WebDAV where what it needs is installed, and elsewhere a sentence about that."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from starlette.types import Receive, Scope, Send

from cfs.errors import Unsupported

_NEEDED = {"a2wsgi", "lxml", "wsgidav"}


class DavApp(Protocol):
    """What answers at and below `/dav`."""

    def opened(self) -> AbstractContextManager[None]:
        """Surround the time in which requests come."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises `CfsError`."""
        ...


class _Missing:
    def opened(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        raise Unsupported("this server was installed without WebDAV: pip install 'cfs-local[webdav]'")


def make_dav() -> DavApp:
    """Make the application for `/dav`."""
    try:
        from cfs_server.dav.app import Dav
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        return _Missing()
    return Dav()
