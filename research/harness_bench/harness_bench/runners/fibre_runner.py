"""Runs one task with Fibre: URL DIRECTORY STATE TASK [--resume]. Exit code 0 when the root's report is a success.

MCP servers are those of an `mcp.json` beside STATE.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import structlog

from cfs.transports.async_http import AsyncClient
from cfs_agents.guards.rules import Policy, load_rules
from cfs_agents.loop.server_model import ServerModel
from cfs_agents.mcp.config import load_servers
from cfs_agents.mcp.tools import McpTools
from cfs_agents.tools import CommandMode
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent


async def main(url: str, directory: Path, state: Path, task: str, *, resume: bool) -> bool:
    """Work on the task, or go on with it."""
    file = state.parent / "mcp.json"
    rules = state.parent / "rules.toml"
    rules.write_text('allow = ["mcp(stock/*)"]\n', encoding="utf-8")
    async with AsyncClient(url) as client:
        model = ServerModel(client)
        async with McpTools(load_servers([file] if file.exists() else []), directory) as servers:
            config = replace(
                CONFIG,
                tools=servers.tools(await model.ask_context_window()),
                policy=Policy(rules=load_rules(None, [rules])),
            )
            async with FibreAgent(str(state), model, config) as agent:
                report = await (agent.resume() if resume and agent.unfinished else agent.run(task))
                return report.ok


CONFIG = FibreConfig(commands=CommandMode.HOST)
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
url, directory, state, task = sys.argv[1:5]
done = asyncio.run(main(url, Path(directory), Path(state), task, resume="--resume" in sys.argv))
sys.exit(0 if done else 1)
