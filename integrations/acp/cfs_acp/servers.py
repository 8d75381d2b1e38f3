"""The MCP servers that an editor passes on, in the form of the agents' own configuration."""

import logging
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from cfs_agents.mcp.config import McpServer

_log = logging.getLogger(__name__)


def servers_of(passed: Iterable[Any] | None) -> dict[str, McpServer]:
    """Return the servers of a request by name; one that the agents cannot use is logged and left out."""
    servers: dict[str, McpServer] = {}
    for server in passed or ():
        try:
            servers[server.name] = _server(server)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            _log.warning("the MCP server %s is not used: %s", server.name, reason)
    return servers


def _server(server: Any) -> McpServer:
    values: dict[str, Any] = {"type": getattr(server, "type", None)}
    if hasattr(server, "command"):
        variables = {variable.name: variable.value for variable in server.env}
        values |= {"command": server.command, "args": tuple(server.args), "env": variables}
    else:
        headers = {header.name: header.value for header in getattr(server, "headers", ())}
        values |= {"url": getattr(server, "url", None), "headers": headers}
    return McpServer.model_validate(values)
