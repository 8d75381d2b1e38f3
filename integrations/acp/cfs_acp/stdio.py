"""JSON-RPC messages over standard input and output, one in each line (the protocol's "stdio" transport).

The package's own transport drops a line that is no JSON and ends at one that is no object. This one answers both with
the error that JSON-RPC 2.0 (section 5.1) gives. It also reads from and writes to files.
"""

import asyncio
import json
import os
import queue
import sys
import threading
from contextlib import suppress
from typing import Any

_PIECE = 1 << 16
PARSE_ERROR, INVALID_REQUEST = -32700, -32600


class StdioTransport:
    """A transport of the package `acp`. Make one in a running event loop, once per process.

    It takes the descriptor of standard output for itself; whatever else the process prints goes to standard error.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        sys.stdout.flush()
        self._output = os.dup(1)
        os.dup2(2, 1)
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outgoing: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        # Threads, as files and terminals cannot be awaited. They are daemons: nothing waits for a blocked one.
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"acp{work.__name__}", daemon=True).start()

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message; returns when it is written. Raises `ConnectionError` if the reader has closed."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._outgoing.put((json.dumps(message, default=str).encode() + b"\n", written))
        await written

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of the input."""
        while (line := await self._lines.get()) is not None:
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                await self._refuse(PARSE_ERROR, "Parse error", str(error))
                continue
            if isinstance(message, dict) and isinstance(message.get("method", ""), str):
                return message
            await self._refuse(INVALID_REQUEST, "Invalid request", "a message is an object with a method")
        return None

    async def close(self) -> None:
        """Do nothing: the threads end with the process."""

    async def _refuse(self, code: int, message: str, details: str) -> None:
        error = {"code": code, "message": message, "data": {"details": details}}
        with suppress(ConnectionError):
            await self.send({"jsonrpc": "2.0", "id": None, "error": error})

    def _read(self) -> None:
        rest = b""
        while True:
            try:
                piece = os.read(0, _PIECE)
            except OSError:
                piece = b""
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._call(self._lines.put_nowait, line)
        if rest:
            self._call(self._lines.put_nowait, rest)
        self._call(self._lines.put_nowait, None)

    def _write(self) -> None:
        while True:
            data, written = self._outgoing.get()
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._output, view) :]
            except OSError as error:
                self._call(_settle, written, ConnectionError(f"the client does not read any more: {error.strerror}"))
                self._call(self._lines.put_nowait, None)
            else:
                self._call(_settle, written, None)

    def _call(self, function: Any, *arguments: Any) -> None:
        """Call a function in the event loop; at the end of the process there is none any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(written: "asyncio.Future[None]", error: Exception | None) -> None:
    if written.done():  # its sender was cancelled
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
