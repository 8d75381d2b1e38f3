"""The tools of several MCP servers, as tools of an agent.

A tool is called `mcp__SERVER__TOOL`. The tools are read once, when the servers start, and stay the same bytes until
they are closed, so that a model's cached prompt stays valid. If their descriptions together would fill more than a
fifth of the model's context, or if there are more than 50 tools and they would fill more than 2,000 tokens, the model
gets two tools in their place: `search_tools` returns the descriptions that match, and `call_tool` calls one.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

from cfs_agents.base.logs import get_logger
from cfs_agents.mcp.config import McpServer
from cfs_agents.mcp.connection import Elicit, McpConnection
from cfs_agents.mcp.results import ResultFiles, text_of_result
from cfs_agents.mcp.schemas import SchemaArguments
from cfs_agents.tools.definition import Tool, tool
from cfs_agents.tools.errors import ToolDefinitionError, ToolError

if TYPE_CHECKING:
    from mcp.types import Tool as McpTool

_log = get_logger(__name__)

PREFIX = "mcp__"
SEARCH = "search_tools"
CALL = "call_tool"
_MAX_NAME = 64
_MAX_MATCHES = 8
_CHARACTERS_PER_TOKEN = 4
_MANY_TOOLS = 50
_MANY_TOKENS = 2_000
"""What the descriptions of many tools may fill, in tokens, however large the model's context is."""
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool of a server: the name that the model uses, and the server's own one."""

    server: str
    name: str
    tool: Tool


class McpTools:
    """The servers of a configuration, and their tools. A server that cannot be reached is a warning, not an error.

    Use it as a context manager around the agents that have the tools. `confined` servers that are programs run in the
    sandbox of commands.
    """

    def __init__(
        self,
        servers: Mapping[str, McpServer],
        workspace: Path,
        *,
        elicit: Elicit | None = None,
        confined: bool = False,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._workspace = workspace
        self._connections = {
            name: McpConnection(name, server, workspace, elicit=elicit, confined=confined)
            for name, server in servers.items()
        }
        self._warn = warn or (lambda sentence: _log.warning("mcp.warning", text=sentence))
        self.remote: dict[str, RemoteTool] = {}
        """The tools by the names that models use, in the order of the configuration."""

    async def __aenter__(self) -> Self:
        try:
            results = await asyncio.gather(
                *(connection.start() for connection in self._connections.values()), return_exceptions=True
            )
        except BaseException:
            await self.close()
            raise
        for connection, result in zip(self._connections.values(), results, strict=True):
            if isinstance(result, ToolError):
                self._warn(f"{result.reason}; its tools are missing")
            elif isinstance(result, BaseException):
                await self.close()
                raise result
            else:
                self._add(connection, result)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all servers."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    def tools(self, context_tokens: int | None = None) -> list[Tool]:
        """Return the tools for a model with this context, or the two that search and call them."""
        tools = [remote.tool for remote in self.remote.values()]
        size = sum(len(json.dumps(entry.schema())) for entry in tools)
        limits = [] if context_tokens is None else [context_tokens // 5]
        if len(tools) > _MANY_TOOLS:
            limits.append(_MANY_TOKENS)
        if all(size <= limit * _CHARACTERS_PER_TOKEN for limit in limits):
            return tools
        return [
            tool(
                f"Find tools among {len(tools)} of the servers {', '.join(self._connections)}. Returns their names,"
                f" descriptions and parameters; call one of them with {CALL}.",
                name=SEARCH,
            )(self._search),
            tool(f"Call a tool that {SEARCH} has returned.", name=CALL, remote_of=self._reached)(self._call),
        ]

    def _add(self, connection: McpConnection, tools: "Sequence[McpTool]") -> None:
        files = ResultFiles(self._workspace, connection.name)
        for described in tools:
            name = _name(connection.name, described.name)
            if name in self.remote:
                self._warn(
                    f"the MCP server {connection.name!r} has two tools called {described.name!r}: one is missing"
                )
                continue
            try:
                new_tool = _tool(name, described, connection, files)
            except ToolDefinitionError as error:
                self._warn(f"{error}; the tool is missing")
                continue
            self.remote[name] = RemoteTool(connection.name, described.name, new_tool)

    async def _search(self, query: Annotated[str, "what the tool should do, in a few words"]) -> str:
        words = set(_WORD.findall(query.lower()))
        ranked = [(_score(words, remote.tool), remote.tool) for remote in self.remote.values()]
        matches = [match for score, match in sorted(ranked, key=lambda row: -row[0]) if score][:_MAX_MATCHES]
        if not matches:
            names = ", ".join(self.remote)
            return f"No tool matches {query!r}. All tools: {names[:4000]}"
        return "\n".join(json.dumps(match.schema()["function"], ensure_ascii=False) for match in matches)

    async def _call(
        self,
        tool: Annotated[str, "name of the tool"],
        arguments: Annotated[dict[str, Any], "its arguments, as its parameters describe them"],
    ) -> Any:
        remote = self._remote(tool)
        return await remote.tool.callable(**remote.tool.arguments.check(arguments))

    def _reached(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
        remote = self._remote(tool)
        return remote.server, remote.name, remote.tool.arguments.check(arguments)

    def _remote(self, name: str) -> RemoteTool:
        if (remote := self.remote.get(name)) is None:
            raise ToolError(f"there is no tool {name!r}: find its name with {SEARCH}")
        return remote


def _score(words: set[str], candidate: Tool) -> float:
    """Return how well a tool matches words: those of its name count three times."""
    name = set(_WORD.findall(candidate.name.lower().replace("_", " ")))
    text = set(_WORD.findall(candidate.description.lower()))
    return 3 * len(words & name) + len(words & text)


def _name(server: str, name: str) -> str:
    """Return the name for models: ASCII letters, digits, `_` and `-`; a long one ends with a part of its hash."""
    full = PREFIX + re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{name}")
    if len(full) <= _MAX_NAME:
        return full
    return f"{full[: _MAX_NAME - 9]}_{hashlib.sha256(f'{server}/{name}'.encode()).hexdigest()[:8]}"


def _tool(name: str, described: "McpTool", connection: McpConnection, files: ResultFiles) -> Tool:
    async def call(**arguments: Any) -> str:
        result = await connection.call(described.name, arguments)
        return await asyncio.to_thread(text_of_result, described.name, result, files)

    description = (described.description or described.title or described.name).strip()
    seconds = connection.server.start_seconds + connection.server.call_seconds + 1
    arguments = SchemaArguments(name, described.input_schema)
    return Tool(
        name=name,
        description=description,
        callable=call,
        timeout=seconds,
        described_arguments=arguments,
        remote_of=lambda **values: (connection.name, described.name, values),
    )
