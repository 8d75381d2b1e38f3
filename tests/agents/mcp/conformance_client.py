"""The client that the conformance suite of the protocol runs: it calls each tool of the server at a URL once."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cfs.wire import ToolCall
from cfs_agents.mcp.config import McpServer
from cfs_agents.mcp.tools import McpTools
from cfs_agents.tools import Registry

ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}


async def defaults(server: str, message: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Accept what the server proposes."""
    return {}


async def main(url: str) -> None:
    """Call the tools."""
    with TemporaryDirectory() as folder:
        async with McpTools({"server": McpServer(url=url)}, Path(folder), elicit=defaults) as mcp:
            tools = Registry(mcp.tools())
            for name in tools.names:
                arguments = ARGUMENTS.get(name.rpartition("__")[2], {})
                await tools.call(ToolCall(id="1", name=name, arguments=arguments))


asyncio.run(main(sys.argv[1]))
