"""What a tool call of MCP costs: `list_sessions` and `read_file` over both transports, against the same by REST.

Run by `scripts/bench mcp_calls [--smoke] [--json FILE]`. The CFS server and each MCP server are processes of their own.
Each transport is used by a bare client, which costs next to nothing, and by the official one, whose time for checking
results and for its own HTTP client is included. REST is the SDK's client with coroutines. All sides take turns, so that
a busy machine slows all of them, and each keeps its connection. The bar is on the bare client.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from cfs import api
from cfs.transports.async_http import AsyncClient
from rest import serving, verdict

BAR_MS = 5.0
WARM_UP = 20
SESSIONS = 20
FILE = "/workspaces/main/plan.md"
CONTENT = "A line of a plan.\n" * 200
CALLS: dict[str, dict[str, Any]] = {"list_sessions": {"limit": SESSIONS}, "read_file": {"path": FILE}}
VERSION = "2026-07-28"
VERSIONS = {VERSION: "auto", "2025-11-25": "legacy"}
BARE = "bare"
REST = "REST"
COMMAND = [str(Path(sys.executable).with_name("cfs")), "mcp"]

Way = tuple[str, str, str]
"""A transport, a client, and a version of the protocol."""


@dataclass(frozen=True, slots=True)
class Row:
    """The round trip of a call by one way, in milliseconds."""

    call: str
    transport: str
    client: str
    protocol: str
    p10: float
    p50: float
    p90: float


@contextmanager
def mcp_over_http(url: str) -> Iterator[str]:
    """Run `cfs mcp --http`; its URL."""
    command = [*COMMAND, "--http", "--port", "0", "--url", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rpartition(" ")[2]
    finally:
        process.terminate()
        process.communicate()


async def measure(url: str, mcp_url: str, runs: int) -> list[Row]:
    """Call by all ways in turn."""
    async with AsyncExitStack() as opened:
        rest = await opened.enter_async_context(AsyncClient(url))
        for number in range(SESSIONS):
            await rest.call(api.create(f"s{number}", transcript="User: Hello.\nAssistant: Hello.\n"))
        await rest.call(api.write_file(FILE, CONTENT.encode()))
        bare_pipe = await opened.enter_async_context(BarePipe.open(url))
        bare_http = await opened.enter_async_context(BareHttp.open(mcp_url))
        ways: dict[Way, Callable[[str], Awaitable[object]]] = {
            (REST, "SDK", ""): lambda call: by_rest(rest, call),
            ("stdio", BARE, VERSION): bare_pipe.call,
            ("HTTP", BARE, VERSION): bare_http.call,
        }
        for protocol, mode in VERSIONS.items():
            program = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env={**os.environ, "CFS_URL": url})
            http = await opened.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=30))
            sides = {"stdio": stdio_client(program), "HTTP": streamable_http_client(mcp_url, http_client=http)}
            for transport, side in sides.items():
                client = await opened.enter_async_context(Client(side, mode=mode))
                assert client.protocol_version == protocol
                await client.list_tools()  # the schemas by which the client checks results
                ways[transport, "official", protocol] = by_mcp(client)
        times: dict[tuple[str, Way], list[float]] = {(call, way): [] for call in CALLS for way in ways}
        for _ in range(runs + WARM_UP):
            for call, way in times:
                began = time.perf_counter()
                await ways[way](call)
                times[call, way].append((time.perf_counter() - began) * 1000)
    rows = []
    for (call, way), found in times.items():
        cuts = statistics.quantiles(found[WARM_UP:], n=10)
        rows.append(Row(call, *way, cuts[0], cuts[4], cuts[8]))
    return rows


def request(tool: str) -> bytes:
    """Write the request of a call."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": CALLS[tool], "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def check(answer: bytes) -> None:
    """Raise if a call has failed."""
    assert b'"isError":false' in answer, answer


class BarePipe:
    """A client over standard input and output that does nothing else."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["BarePipe"]:
        """Start `cfs mcp`."""
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, "CFS_URL": url}
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=pipe, stdout=pipe, env=environment, limit=1 << 20
        )
        try:
            yield cls(process)
        finally:
            process.terminate()
            await process.communicate()

    async def call(self, tool: str) -> None:
        """Call a tool."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request(tool) + b"\n")
        check(await self._process.stdout.readline())


class BareHttp:
    """A client over one open connection that does nothing else."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["BareHttp"]:
        """Connect to an MCP server."""
        host = urlsplit(url).netloc
        reader, writer = await asyncio.open_connection(*host.split(":"))
        try:
            yield cls(host, reader, writer)
        finally:
            writer.transport.abort()

    async def call(self, tool: str) -> None:
        """Call a tool."""
        body = request(tool)
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: {VERSION}\r\n"
            f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        size = int(answer.partition(b"content-length: ")[2].partition(b"\r")[0])
        check(await self._reader.readexactly(size))


def by_rest(client: AsyncClient, call: str) -> Awaitable[object]:
    """Do by REST what a tool does."""
    if call == "read_file":
        return client.call(api.read_file(FILE))
    return client.call(api.list_sessions(limit=SESSIONS))


def by_mcp(client: Client) -> Callable[[str], Awaitable[object]]:
    """Return the function that calls a tool, which must succeed."""

    async def call(tool: str) -> None:
        result = await client.call_tool(tool, CALLS[tool])
        assert not result.is_error, result

    return call


def show(rows: list[Row], runs: int) -> None:
    """Print the table."""
    print(f"\nRound trip of a tool call in milliseconds, of {runs} interleaved runs\n")
    print("| call | way | client | protocol | p10 | median | p90 | beyond REST | bar | within |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|---|")
    rest = {row.call: row.p50 for row in rows if row.transport == REST}
    for row in rows:
        judged = "| | |" if row.client != BARE else f"| {BAR_MS:g} | {verdict(row.p50 <= BAR_MS)} |"
        beyond = "" if row.transport == REST else f"{row.p50 - rest[row.call]:.2f}"
        way = f"{row.transport} | {row.client} | {row.protocol}"
        print(f"| `{row.call}` | {way} | {row.p10:.2f} | {row.p50:.2f} | {row.p90:.2f} | {beyond} {judged}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a tool call of MCP costs.")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    number = 10 if options.smoke else 300
    load = os.getloadavg()
    with serving("--engine", "scripted") as (server, _), mcp_over_http(server) as address:
        figures = asyncio.run(measure(server, address, number))
    show(figures, number)
    print(f"\nLoad of the machine ({os.cpu_count()} processors): {load} to {os.getloadavg()}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in figures], indent=2) + "\n")
