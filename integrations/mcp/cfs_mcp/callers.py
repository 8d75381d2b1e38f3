"""The callers of the MCP server: for each token a client of the CFS server, which checks what it may do (G9)."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import ListenHandler
from starlette.requests import Request

from cfs.api import ApiResponse, Call
from cfs.api import Request as ApiRequest
from cfs.errors import Unauthorized
from cfs.transports.async_http import AsyncClient
from cfs.wire import WhoAmI
from cfs_mcp.changes import Changes

MAX_CALLERS = 1_000
"""Callers whose connections are kept open; one that is busy is never closed."""

_BEARER = "bearer "


def whoami() -> Call[WhoAmI]:
    """`GET /v1/whoami`: the caller, as the server knows it."""

    def read(answer: ApiResponse) -> WhoAmI:
        return WhoAmI.model_validate_json(answer.body)

    return Call(ApiRequest("GET", "/v1/whoami"), read)


def bearer(header: str) -> str:
    """Return the token of an `Authorization` header; empty without one."""
    return header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""


class CallerClient:
    """One token's client of the CFS server, and its subscriptions. `users` counts who needs it now."""

    def __init__(self, url: str, token: str | None) -> None:
        self.client = AsyncClient(url, token)
        self.users = 0
        self.changes = Changes(self.client, self._end_streams)
        self.listen = ListenHandler(self.changes)

    def _end_streams(self) -> None:
        self.listen.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.changes.close()
        await self.client.close()


class CallerClients:
    """The callers that are known. Over stdio there is one, with the token that the program was given."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url
        self._token = token
        self._known: dict[str | None, CallerClient] = {}

    def token_of(self, context: ServerRequestContext[Any, Any]) -> str | None:
        """Return the token of a request. A request over HTTP never gets the token of this program."""
        request = context.request
        if isinstance(request, Request):
            return bearer(request.headers.get("authorization", ""))
        return self._token

    async def admit(self, token: str) -> None:
        """Raise `Unauthorized` if the CFS server does not accept the token of a new caller."""
        if not (token.isascii() and token.isprintable()):
            raise Unauthorized("the token holds characters that no token has")
        if token not in self._known:
            async with self.calling(token) as caller:
                try:
                    await caller.client.call(whoami())
                except BaseException:
                    self._known.pop(token, None)
                    raise

    @asynccontextmanager
    async def calling(self, token: str | None) -> AsyncIterator[CallerClient]:
        """Return the caller with this token, which stays usable until the block ends."""
        caller = self._known.pop(token, None) or CallerClient(self._url, token)
        self._known[token] = caller  # the last one is the one that was used last
        caller.users += 1
        try:
            await self._forget_old()
            yield caller
        finally:
            caller.users -= 1
            if not caller.users and self._known.get(token) is not caller:
                await caller.close()

    async def close(self) -> None:
        """Close all connections."""
        while self._known:
            await self._known.popitem()[1].close()

    async def _forget_old(self) -> None:
        surplus = len(self._known) - MAX_CALLERS
        if surplus > 0:
            idle = [token for token, caller in self._known.items() if not caller.users]
            for token in idle[:surplus]:
                await self._known.pop(token).close()


def identity(token: str) -> str:
    """Return a name for a token that does not reveal it."""
    return hashlib.sha256(token.encode()).hexdigest()
