"""The connection to one MCP server: its start, calls, and the next start after it has ended.

A connection is opened and closed by one task, because the library's contexts belong to the task that enters them. Calls
come from any task of the loop. A call that is cancelled, or takes too long, is cancelled at the server; the server goes
on. A server that has ended is started again by the next call, after a pause that doubles with each failure.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cfs_agents.base.logs import get_logger
from cfs_agents.base.threads import in_thread
from cfs_agents.mcp.config import McpServer
from cfs_agents.mcp.stderr import StderrTail
from cfs_agents.shell.confined import confined, program_paths
from cfs_agents.shell.settings import Sandbox
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.paths import WORKSPACE

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, Tool

_log = get_logger(__name__)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between the failure of a server and its next start."""

_MAX_TOOLS = 1000
_MAX_STDERR = 300
"""Characters of a program's last words in an error."""

Elicit = Callable[[str, str, Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Asks a person for what a server wants to know: its name, its message, and a JSON schema of the values.

Returns the values, to which the defaults of the schema are added; None declines.
"""


class ConnectionState(StrEnum):
    """Where a connection stands. `ENDED` goes to `STARTING` with the next call, after a pause."""

    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"
    CLOSED = "closed"


class McpConnection:
    """A connection to one server. Use `start` once, `call` often, and `close`."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        workspace: Path,
        *,
        elicit: Elicit | None = None,
        confined: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.server = server
        self.state = ConnectionState.ENDED
        self.reason = ""
        """Why the server cannot be reached; empty if it can."""
        self._workspace = workspace
        self._directory = workspace if server.cwd is None else workspace / Path(server.cwd).expanduser()
        self._elicit = elicit
        self._confined = confined and server.command is not None and server.sandbox is not False
        self._clock = clock
        self._failures = 0
        self._next_start = 0.0
        self._starting = asyncio.Lock()
        self._client: Client | None = None
        self._tools: list[Tool] = []
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._stderr: StderrTail | None = None

    async def start(self) -> "list[Tool]":
        """Start the server and return its tools, in its order. Raises `ToolError` with the reason if that fails."""
        await self._ready()
        return self._tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> "CallToolResult":
        """Call a tool. Raises `ToolError` if the server cannot be reached, ends, refuses, or takes too long."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        client = await self._ready()
        seconds = self.server.call_seconds
        try:
            return await client.call_tool(tool, dict(arguments), read_timeout_seconds=seconds)
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise ToolError(f"{tool} took longer than {seconds:g} s; the call was ended") from None
            if error.code == CONNECTION_CLOSED:
                await self._lost(client)
                raise ToolError(
                    f"the MCP server {self.name!r} ended during the call of {tool}{self._last_words()}. It is not known"
                    " whether the call had an effect. The server is started again with the next call"
                ) from None
            raise ToolError(f"{tool} failed: {error.error.message}") from None
        except (ValidationError, RuntimeError, ValueError) as error:  # the answer is not what the server has promised
            raise ToolError(f"the MCP server {self.name!r} sent an invalid result of {tool}: {_line(error)}") from None
        except OSError as error:
            await self._lost(client)
            raise ToolError(f"the MCP server {self.name!r} cannot be reached: {_line(error)}") from None

    async def close(self) -> None:
        """End the server, and all that it has started."""
        self.state = ConnectionState.CLOSED
        await self._end_task()

    async def _ready(self) -> "Client":
        async with self._starting:
            if self.state is ConnectionState.CLOSED:
                raise ToolError(f"the MCP server {self.name!r} is closed")
            if self._client is not None and self.state is ConnectionState.READY:
                return self._client
            if (pause := self._next_start - self._clock()) > 0:
                raise ToolError(f"{self.reason}. It is started again in {pause:.0f} s at the earliest")
            return await self._start()

    async def _start(self) -> "Client":
        await self._end_task()
        self.state, self._leave = ConnectionState.STARTING, asyncio.Event()
        started: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(started, self._leave), name=f"mcp {self.name}")
        try:
            client = await asyncio.shield(started)
        except ToolError as error:
            self._failed(error.reason)
            raise
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        self._client, self.state, self.reason, self._failures = client, ConnectionState.READY, "", 0
        return client

    async def _serve(self, started: "asyncio.Future[Client]", leave: asyncio.Event) -> None:
        """Hold the connection open until it is to end; sets `started` to the client or the reason of a failure."""
        seconds = self.server.start_seconds
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(seconds):
                        client = await self._connect(stack)
                        self._tools = await _list_tools(client)
                except TimeoutError:
                    raise ToolError(
                        f"the MCP server {self.name!r} did not start within {seconds:g} s{self._last_words()}"
                    ) from None
                started.set_result(client)
                await leave.wait()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                if not started.done():
                    started.cancel()
                raise
            reason = error.reason if isinstance(error, ToolError) else self._why(error)
            if started.done():
                _log.warning("mcp.ended", server=self.name, reason=reason)
            else:
                started.set_exception(ToolError(reason))

    async def _connect(self, stack: AsyncExitStack) -> "Client":
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.types import Implementation, ListRootsResult, Root
        from pydantic import FileUrl

        async def roots(context: object) -> ListRootsResult:  # noqa: ARG001
            return ListRootsResult(roots=[Root(uri=FileUrl(self._workspace.absolute().as_uri()), name="workspace")])

        server = self.server
        transport: Any
        if server.command is None:
            import httpx2

            timeout = httpx2.Timeout(server.start_seconds, read=server.call_seconds)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout))
            transport = streamable_http_client(str(server.url), http_client=http)
        else:
            self._stderr = stderr = StderrTail()
            stack.callback(stderr.close)
            command, *args = await in_thread(self._command)
            parameters = StdioServerParameters(
                command=command,
                args=args,
                env={"HOME": "/tmp", **server.env} if self._confined else dict(server.env),  # noqa: S108 - the sandbox's
                cwd=self._directory,
                encoding_error_handler="replace",
            )
            transport = _closing(stdio_client(parameters, errlog=stderr.writer), stderr)
        client = Client(
            transport,
            list_roots_callback=roots,
            elicitation_callback=None if self._elicit is None else self._answer,
            client_info=Implementation(name="cfs", version=version("cfs-local")),
            cache=None,
        )
        return await stack.enter_async_context(client)

    def _command(self) -> list[str]:
        """Return the command of the program, in the sandbox if it is confined. Raises `FileNotFoundError`."""
        server = self.server
        command = [str(server.command), *server.args]
        if not self._confined or server.sandbox is False:
            return command
        write = (self._workspace.resolve(), *(Path(path).expanduser().resolve() for path in server.sandbox.write))
        read = (*program_paths(command, self._directory), *(Path(path).expanduser() for path in server.sandbox.read))
        sandbox = Sandbox(
            writable=write,
            readable=tuple(path for path in read if not any(path.is_relative_to(folder) for folder in write)),
            places={WORKSPACE: write[0]},
            network=server.sandbox.network,
        )
        return confined(command, sandbox, self._directory.resolve())

    async def _answer(self, context: object, params: "ElicitRequestParams") -> "ElicitResult":  # noqa: ARG002
        """Answer what the server wants to know from a person; its request to open a URL is declined."""
        from mcp.types import ElicitResult

        schema = getattr(params, "requested_schema", None)
        if self._elicit is None or schema is None:
            return ElicitResult(action="decline")
        values = await self._elicit(self.name, params.message, schema)
        if values is None:
            return ElicitResult(action="decline")
        properties = schema.get("properties", {})
        defaults = {key: definition["default"] for key, definition in properties.items() if "default" in definition}
        return ElicitResult(action="accept", content={**defaults, **values})

    async def _lost(self, client: "Client") -> None:
        """Record that the server has ended, unless it has been started again by now."""
        if self._client is client:
            self._failed(f"the MCP server {self.name!r} has ended{self._last_words()}", pause=False)

    def _failed(self, reason: str, *, pause: bool = True) -> None:
        self._client, self.reason = None, reason
        if self.state is not ConnectionState.CLOSED:
            self.state = ConnectionState.ENDED
        if pause:
            self._next_start = self._clock() + min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
            self._failures += 1
        _log.warning("mcp.failed", server=self.name, reason=reason)

    async def _end_task(self) -> None:
        task, self._task, self._client = self._task, None, None
        self._leave.set()
        if task is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])

    def _why(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, FileNotFoundError):
            return f"the MCP server {self.name!r} cannot be started: there is no program {self.server.command!r}"
        return f"the MCP server {self.name!r} could not be started: {_line(error)}{self._last_words()}"

    def _last_words(self) -> str:
        """Return the end of what the program wrote to its standard error, as a part of a sentence."""
        text = "" if self._stderr is None else self._stderr.text[-_MAX_STDERR:]
        return f" (its last output: {text!r})" if text else ""


@asynccontextmanager
async def _closing(transport: Any, stderr: StderrTail) -> AsyncGenerator[Any]:
    """Open a transport, and close this process's end of the program's standard error once the program runs."""
    async with transport as streams:
        stderr.writer.close()
        yield streams


async def _list_tools(client: "Client") -> "list[Tool]":
    """Return all tools of a server, page by page, up to a thousand; none of a server without tools."""
    if client.server_capabilities.tools is None:
        return []
    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) >= _MAX_TOOLS:
            return tools[:_MAX_TOOLS]


def _line(error: BaseException) -> str:
    """Return an error as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_STDERR else f"{text[:_MAX_STDERR]}..."
