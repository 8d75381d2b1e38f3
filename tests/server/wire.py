"""Requests whose bytes go over the wire as they are written: a client would tidy them up, or refuse to send them."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_LONGEST_HEAD = 1 << 22


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, as bytes."""

    status: int
    head: bytes
    body: bytes

    def says(self, *lines: bytes) -> bool:
        """Whether all of these lines are in the head."""
        return set(lines) <= set(self.head.lower().split(b"\r\n"))


class Wire:
    """A connection to a server, opened again when the server has closed it."""

    def __init__(self, url: str) -> None:
        self._at = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, target: bytes, body: bytes = b"", **fields: str) -> Reply:
        """Send one request with this target and read the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._at.hostname, self._at.port, limit=_LONGEST_HEAD)
        reader, writer = self._streams
        headers = {"Host": "localhost", "Content-Length": str(len(body))} | {
            name.replace("_", "-"): value for name, value in fields.items()
        }
        lines = [method.encode() + b" " + target + b" HTTP/1.1"]
        lines += [f"{name}: {value}".encode() for name, value in headers.items()]
        writer.write(b"\r\n".join([*lines, b"", b""]) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        known = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        closing = known.get(b"connection") == b"close"
        size = known.get(b"content-length")
        if method == "HEAD" or head.split()[1] in (b"204", b"304"):
            content = b""
        elif size is None:
            assert closing or known.get(b"content-type", b"").startswith(b"text/event-stream"), head
            content, closing = b"", True  # a stream: that it has begun is enough
        else:
            content = await reader.readexactly(int(size))
        if closing:
            await self.close()
        return Reply(int(head.split()[1]), head, content)

    async def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
