"""The lines of standard input and output: all that is read is answered, also what is no message (JSON-RPC 2.0, 5.1).

The library cancels its requests when the input ends, and drops lines that it cannot read.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import types
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

_LAST_SECONDS = 60
"""How long requests are answered after the end of the input."""
_ENDLESS = "subscriptions/listen"
_CANCELLED = "notifications/cancelled"

Input = SessionMessage | Exception


@asynccontextmanager
async def lines() -> AsyncIterator[tuple[ReadStream[Input], WriteStream[SessionMessage]]]:
    """Yield the streams of a server whose client has started this program."""
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        to_server, requests = anyio.create_memory_object_stream[Input]()
        answers, from_server = anyio.create_memory_object_stream[SessionMessage]()
        exchange = _Exchange()
        tasks.start_soon(exchange.read, read, to_server, write)
        tasks.start_soon(exchange.write, from_server, write)
        yield requests, answers


class _Exchange:
    """The requests that have no answer yet."""

    def __init__(self) -> None:
        self._open: set[types.RequestId] = set()
        self._answered = anyio.Event()

    async def read(
        self, lines: ReadStream[Input], server: WriteStream[Input], client: WriteStream[SessionMessage]
    ) -> None:
        """Pass messages to the server. At the end of the lines, wait for its answers."""
        async with server:
            async for line in lines:
                if isinstance(line, Exception):
                    if (error := _error_of(line)) is not None:
                        await client.send(SessionMessage(error))
                else:
                    self._note(line.message)
                    await server.send(line)
            with anyio.move_on_after(_LAST_SECONDS):
                while self._open:
                    self._answered = anyio.Event()
                    await self._answered.wait()

    async def write(self, server: ReadStream[SessionMessage], client: WriteStream[SessionMessage]) -> None:
        """Pass messages to the client."""
        async with client:
            async for line in server:
                await client.send(line)
                if isinstance(line.message, types.JSONRPCResponse | types.JSONRPCError):
                    self._close(line.message.id)

    def _note(self, message: types.JSONRPCMessage) -> None:
        match message:
            case types.JSONRPCRequest(id=number, method=method) if method != _ENDLESS:
                self._open.add(number)
            case types.JSONRPCNotification(method=method, params=params) if method == _CANCELLED:
                self._close((params or {}).get("requestId"))

    def _close(self, number: Any) -> None:
        self._open.discard(number)
        self._answered.set()


def _error_of(error: Exception) -> types.JSONRPCError | None:
    """Return the answer to a line that is no message; None for an empty one."""
    errors = error.errors() if isinstance(error, ValidationError) else []
    broken = next((problem for problem in errors if problem["type"] == "json_invalid"), None)
    if broken is not None:
        if isinstance(broken["input"], str) and not broken["input"].strip():
            return None
        return _refusal(None, types.PARSE_ERROR, f"the line is no JSON: {broken['msg'].partition(': ')[2]}")
    message = next((problem["input"] for problem in errors if isinstance(problem["input"], dict)), {})
    number = message.get("id")
    request_id = number if isinstance(number, int | str) and not isinstance(number, bool) else None
    return _refusal(request_id, types.INVALID_REQUEST, "the line is no message of JSON-RPC 2.0")


def _refusal(number: types.RequestId | None, code: int, reason: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=number, error=types.ErrorData(code=code, message=reason))
