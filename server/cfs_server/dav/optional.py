"""Serves WebDAV if its dependencies are installed, and otherwise an error that names them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from starlette.types import Receive, Scope, Send

from cfs.errors import Unsupported
from cfs_server.sessions.store import SessionStore

_NEEDED = {"a2wsgi", "lxml", "wsgidav"}


class DavApp(Protocol):
    """The application at and below `/dav`."""

    def opened(self, store: SessionStore) -> AbstractContextManager[None]:
        """Open the resources that requests need."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises `CfsError`."""
        ...


class _Missing:
    def opened(self, store: SessionStore) -> AbstractContextManager[None]:  # noqa: ARG002 - it needs nothing
        return nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        raise Unsupported("this server was installed without WebDAV: pip install 'cfs-local[webdav]'")


def make_dav() -> DavApp:
    """Create the application for `/dav`."""
    try:
        from cfs_server.dav.app import Dav
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        return _Missing()
    return Dav()
