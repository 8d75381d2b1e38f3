"""Real MCP servers as programs of their own, and the official client for each way to them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Literal, Protocol

import httpx2
import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from pytest_cfs import ScriptedServer
from tests.fork_server import Program, asyncio_programs

Way = Literal["stdio", "HTTP"]
Era = Literal["auto", "legacy"]
COMMAND = [sys.executable, "-m", "cfs", "mcp"]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without what it says about a CFS server, and with these variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CFS_")} | variables


@contextmanager
def http_program(url: str) -> Iterator[str]:
    """Run `cfs mcp --http` for the CFS server at a URL; return its own URL."""
    process = Program(
        [*COMMAND, "--http", "--port", "0", "--url", url], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stdout is not None
        words, _, address = process.stdout.readline().strip().rpartition(" ")
        assert words == "listening on"
        yield address
    finally:
        process.terminate()
        process.communicate()


@asynccontextmanager
async def by_http(url: str, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
    """Connect to an MCP server over HTTP, with a token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = httpx2.Timeout(30, read=None)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


@asynccontextmanager
async def by_stdio(url: str, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
    """Start `cfs mcp` and connect to it."""
    variables = {"CFS_URL": url} | ({"CFS_TOKEN": token} if token else {})
    program = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=environment(**variables))
    with asyncio_programs():
        async with Client(stdio_client(program), **options) as client:
            yield client


class Programs:
    """MCP servers over standard input and output that the tests of a module share: one takes a second to start.

    A client must be left by the task that entered it, so each has a task of its own.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = asyncio.Event()
        self._clients: dict[str, asyncio.Future[Client]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def client(self, mode: str) -> AsyncIterator[Client]:
        """The client of one kind of versions, which stays connected."""
        if mode not in self._clients:
            self._clients[mode] = asyncio.get_running_loop().create_future()
            self._tasks.append(asyncio.create_task(self._hold(mode, self._clients[mode])))
        yield await self._clients[mode]

    async def _hold(self, mode: str, connected: asyncio.Future[Client]) -> None:
        try:
            async with by_stdio(self._url, mode=mode) as client:
                connected.set_result(client)
                await self._over.wait()
        except Exception as error:
            if connected.done():
                raise
            connected.set_exception(error)

    async def close(self) -> None:
        """End the programs."""
        self._over.set()
        await asyncio.gather(*self._tasks)


class Connect(Protocol):
    """Connects in the way of a test; options are those of the client."""

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Return the connected client."""
        ...


@pytest.fixture(scope="session")
def http_url(_cfs_server: ScriptedServer) -> Iterator[str]:
    """The URL of an MCP server over HTTP for the one CFS server of the tests."""
    with http_program(_cfs_server.url) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def programs(_cfs_server: ScriptedServer) -> AsyncIterator[Programs]:
    """The programs of a module; none is started before a test connects to it."""
    made = Programs(_cfs_server.url)
    yield made
    await made.close()


@pytest.fixture(params=["stdio-auto", "HTTP-auto", "stdio-legacy", "HTTP-legacy"])
def connect(request: pytest.FixtureRequest, cfs_server: ScriptedServer, programs: Programs) -> Connect:
    """Each way to the MCP server, and both kinds of versions of the protocol.

    A client with options of its own gets a program of its own.
    """
    way, _, mode = request.param.partition("-")
    if way == "HTTP":
        url: str = request.getfixturevalue("http_url")
        return lambda **options: by_http(url, mode=mode, **options)
    return lambda **options: by_stdio(cfs_server.url, mode=mode, **options) if options else programs.client(mode)
