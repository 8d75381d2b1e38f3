"""A server that wants tokens, and callers that have some."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from cfs_server.access import tokens
from cfs_server.access.tokens import TokenGrant, TokenLimits
from tests.server.support import House, house

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

    def __init__(self, home: House, path: Path, clients: dict[str, httpx.AsyncClient]) -> None:
        self.home = home
        self.path = path
        self.clients = clients

    def __getitem__(self, name: str) -> httpx.AsyncClient:
        return self.clients[name]

    def admit(self, name: str, secret: str) -> None:
        """Make a client for a token that came later."""
        self.clients[name] = client_of(self.home, secret)

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


def client_of(home: House, secret: str) -> httpx.AsyncClient:
    """Make a client that shows a token."""
    return httpx.AsyncClient(base_url=home.url, headers=bearer(secret), timeout=30, trust_env=False)


@asynccontextmanager
async def gated(path: Path, secrets: dict[str, str], **changes: Any) -> AsyncIterator[Gated]:
    """Serve with a tokens file; `secrets` are those in it, by names."""
    async with house(tokens=path, **changes) as home:
        clients = {name: client_of(home, secret) for name, secret in secrets.items()}
        try:
            yield Gated(home, path, clients)
        finally:
            for client in clients.values():
                await client.aclose()
