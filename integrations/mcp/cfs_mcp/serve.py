"""Runs the MCP server: over standard input and output for one caller, or over HTTP for many, each with its token."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import typer
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cfs.errors import CfsError, InvalidRequest, Unauthorized, to_problem
from cfs_mcp.callers import CallerClients, bearer, identity
from cfs_mcp.lines import lines
from cfs_mcp.server import Face, options_of

PATH = "/mcp"
_GRACE_SECONDS = 2
"""How long calls may go on after a signal; subscriptions would have no end."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def stdio(url: str, token: str | None) -> None:
    """Serve the program that has started this one, until it closes standard input and has its answers."""
    try:
        asyncio.run(_stdio(CallerClients(url, token)))
    except (OSError, ExceptionGroup) as error:  # not "except*": with Python 3.11.2, that raises a group
        if isinstance(error, ExceptionGroup) and error.split(OSError)[1] is not None:
            raise
        raise BrokenPipeError from None  # it has closed our output, too


async def _stdio(callers: CallerClients) -> None:
    server = Face(callers).server()
    async with lines() as (read, write):
        await server.run(read, write, options_of(server))


def http(url: str, host: str, port: int) -> None:
    """Serve over HTTP until interrupted. Raises `InvalidRequest` if the address cannot be used."""
    asyncio.run(_http(url, host, port))


async def _http(url: str, host: str, port: int) -> None:
    callers = CallerClients(url)
    if host not in _LOOPBACK and await _needs_no_token(callers):
        raise InvalidRequest(f"{url} requires no tokens, so anyone could use it by way of {host}: listen on 127.0.0.1")
    with _listening(host, port) as listener:
        config = uvicorn.Config(
            app(callers, host), log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE_SECONDS
        )
        address = listener.getsockname()
        server = _Announced(config, f"listening on http://{f'[{host}]' if ':' in host else host}:{address[1]}{PATH}")
        await server.serve(sockets=[listener])


class _Announced(uvicorn.Server):
    """A server that prints its address once it answers requests."""

    def __init__(self, config: uvicorn.Config, words: str) -> None:
        super().__init__(config)
        self._words = words

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the address."""
        await super().startup(sockets)
        if not self.should_exit:
            typer.echo(self._words)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:  # asyncio then sets TCP_NODELAY
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InvalidRequest(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        yield listener


async def _needs_no_token(callers: CallerClients) -> bool:
    try:
        await callers.admit("")
    except Unauthorized:
        return False
    return True


def app(callers: CallerClients, host: str = "127.0.0.1") -> ASGIApp:
    """Return the ASGI application: the endpoint `/mcp`, and the check of each caller's token before it.

    On loopback the names of the host and of a web page's origin are checked, too (DNS rebinding).
    """
    return Door(Face(callers).server().streamable_http_app(streamable_http_path=PATH, host=host), callers)


class Door:
    """Refuses callers whose token the CFS server does not accept, and names the others for the library.

    The library lets a connection be used with the credential only that has opened it.
    """

    def __init__(self, inner: ASGIApp, callers: CallerClients) -> None:
        self._inner = inner
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        token = bearer(Headers(scope=scope).get("authorization", ""))
        try:
            await self._callers.admit(token)
        except CfsError as error:
            await _refusal(error)(scope, receive, send)
            return
        if token:
            user = AuthenticatedUser(AccessToken(token=token, client_id=identity(token), scopes=[]))
            scope = {**scope, "user": user}
        await self._inner(scope, receive, send)


def _refusal(error: CfsError) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    return JSONResponse(to_problem(error), error.status, headers, media_type="application/problem+json")
