"""A client for streams of server-sent events that costs next to nothing itself: it shares two cores with the server."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

LONGEST = 300.0
"""Seconds that anything may take."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read a URL without a path."""
        host, _, port = url.strip().rstrip("/").removeprefix("http://").rpartition(":")
        return cls(host, int(port))


class RefusedError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, text: str, retry_after: str = "") -> None:
        super().__init__(f"HTTP {status}: {text[:300]}")
        self.status = status
        self.retry_after = retry_after


class Exchange:
    """One request on a connection of its own, and its answer."""

    def __init__(self, address: Address, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self._address = address
        lines = [f"{method} {path} HTTP/1.1", f"Host: {address.host}:{address.port}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self._request = "\r\n".join(lines).encode() + body

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; raises `RefusedError` for a status of 400 or more."""
        reader, writer = await asyncio.open_connection(self._address.host, self._address.port, limit=1 << 22)
        try:
            writer.write(self._request)
            status, headers = await _head(reader)
            body = _chunks(reader) if headers.get("transfer-encoding") == "chunked" else _plain(reader)
            if status >= 400:
                text = b"".join([piece async for piece in body]).decode(errors="replace")
                raise RefusedError(status, text, headers.get("retry-after", ""))
            async for piece in body:
                yield piece
        finally:
            writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


async def _plain(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(1 << 16):
        yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def fetch(
    address: Address,
    path: str,
    body: Any = None,
    *,
    method: str = "",
    headers: dict[str, str] | None = None,
    seconds: float = LONGEST,
) -> Any:
    """Get, or post where there is a body; the answer is read as JSON if it is some. A silent server is an `OSError`."""
    data = b"" if body is None else json.dumps(body).encode()
    wanted = {"Content-Type": "application/json"} if data else {}
    exchange = Exchange(address, method or ("POST" if data else "GET"), path, wanted | (headers or {}), data)
    async with asyncio.timeout(seconds):  # a `TimeoutError` is an `OSError`
        text = b"".join([piece async for piece in exchange.pieces()])
    return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()


async def events(
    address: Address, path: str, body: Any, headers: dict[str, str] | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Post and yield the data of each event as it comes; ends at the end of the stream or at `[DONE]`."""
    wanted = {"Content-Type": "application/json", "Accept": "text/event-stream"} | (headers or {})
    exchange = Exchange(address, "POST", path, wanted, json.dumps(body).encode())
    rest = b""
    async for piece in exchange.pieces():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield json.loads(data)
