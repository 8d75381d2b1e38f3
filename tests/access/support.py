"""A server that wants tokens, and callers that have some."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from cfs_server.access import tokens
from cfs_server.access.tokens import TokenGrant, TokenLimits
from tests.server.support import ServerHarness, running_server

ALL = "list,file,read,write,delete"


def granted(text: str) -> TokenGrant:
    """Write a grant as `PREFIX` (everything there) or `PREFIX=OPS`, with commas between."""
    prefix, equals, ops = text.rpartition("=")
    return TokenGrant.model_validate({"prefix": prefix if equals else text, "ops": (ops if equals else ALL).split(",")})


def make(path: Path, name: str, *grants: str, **limits: Any) -> str:
    """Add a token to a file; return its secret."""
    return tokens.create(path, name, [granted(each) for each in grants], limits=TokenLimits(**limits))


def bearer(secret: str) -> dict[str, str]:
    """The header that most programs send."""
    return {"Authorization": f"Bearer {secret}"}


def basic(user: str, password: str) -> dict[str, str]:
    """The header that browsers and file managers send."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Gated:
    """A running server with a tokens file, and a client for every token that was made for it."""

    def __init__(self, server: ServerHarness, path: Path) -> None:
        self.server = server
        self.path = path
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._opened = AsyncExitStack()

    def __getitem__(self, name: str) -> httpx.AsyncClient:
        return self._clients[name]

    def admit(self, name: str, secret: str) -> None:
        """Make a client that shows a token."""
        client = httpx.AsyncClient(base_url=self.server.url, headers=bearer(secret), timeout=30, trust_env=False)
        self._opened.push_async_callback(client.aclose)
        self._clients[name] = client

    async def aclose(self) -> None:
        """Close all clients."""
        await self._opened.aclose()

    async def edit(self, old: str, new: str) -> None:
        """Change the text of the tokens file, as an editor would."""

        def change() -> None:
            text = self.path.read_text()
            assert old in text
            self.path.write_text(text.replace(old, new))

        await asyncio.to_thread(change)

    async def status(self, name: str) -> int:
        """Ask as somebody who that is."""
        return (await self[name].get("/v1/whoami")).status_code

    async def until_status(self, name: str, status: int) -> None:
        """Ask until the answer is another; the test's time-out is the limit."""
        while await self.status(name) != status:  # noqa: ASYNC110 - the server looks at the file by and by
            await asyncio.sleep(0.05)

    async def used(self, name: str) -> dict[str, Any]:
        """How much somebody has taken."""
        answer = await self[name].get("/v1/whoami")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["usage"]
        return found


@asynccontextmanager
async def gated(path: Path, secrets: dict[str, str], **changes: Any) -> AsyncIterator[Gated]:
    """Serve with a tokens file; `secrets` are those in it, by names."""
    async with running_server(tokens=path, **changes) as server, aclosing(Gated(server, path)) as gate:
        for name, secret in secrets.items():
            gate.admit(name, secret)
        yield gate
