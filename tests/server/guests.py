"""Several callers of one server, each with grants of its own (G9)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

from cfs_filesystem import Grant
from cfs_server.access.auth import Principal
from cfs_server.access.tokens import Token, digest
from tests.server.support import EventStream, ServerHarness


@dataclass(frozen=True, slots=True)
class Guest:
    """A caller with a token."""

    client: httpx.AsyncClient
    principal: Principal
    credentials: dict[str, str]
    url: str

    def may(self, *grants: Grant) -> None:
        """Have these grants from now on, and no others."""
        self.principal.handle.grants = list(grants)

    async def say(self, session: str, text: str, **params: str) -> httpx.Response:
        """Send a message as plain text."""
        return await self.client.post(f"/v1/sessions/{session}/messages", content=text.encode(), params=params)

    async def create(self, session: str, transcript: str | None = None, **settings: object) -> None:
        """Make a session."""
        new = {"id": session, "settings": settings, "transcript": transcript}
        answer = await self.client.post("/v1/sessions", json=new)
        assert answer.status_code == 201, answer.text

    async def stream(self, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> EventStream:
        """Open a stream of events."""
        return await EventStream.open(self.url, path, self.credentials | (headers or {}), body)


@asynccontextmanager
async def guests(server: ServerHarness, **grants: Sequence[Grant]) -> AsyncIterator[dict[str, Guest]]:
    """Let these callers in, each with its grants, and no others."""
    secrets = {name: f"cfs_{name}" for name in grants}
    server.parts.principals.use({name: Token(hash=digest(secret)) for name, secret in secrets.items()})
    async with AsyncExitStack() as stack:
        found = {}
        for name, secret in secrets.items():
            credentials = {"Authorization": f"Bearer {secret}"}
            principal = server.parts.principals.authenticate(credentials["Authorization"])
            assert principal is not None
            client = httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False, headers=credentials)
            found[name] = Guest(await stack.enter_async_context(client), principal, credentials, server.url)
            found[name].may(*grants[name])
        yield found
