"""Runs one task with Fibre: URL DIRECTORY STATE TASK [--resume]. Exit code 0 when the root's report is a success."""

import asyncio
import sys

import structlog

from cfs.transports.async_http import AsyncClient
from cfs_agents.loop.server_model import ServerModel
from cfs_agents.tools import CommandMode
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent


async def main(url: str, state: str, task: str, *, resume: bool) -> bool:
    """Work on the task, or go on with it."""
    async with AsyncClient(url) as client, FibreAgent(state, ServerModel(client), CONFIG) as agent:
        report = await (agent.resume() if resume and agent.unfinished else agent.run(task))
        return report.ok


CONFIG = FibreConfig(commands=CommandMode.HOST)
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
sys.exit(0 if asyncio.run(main(sys.argv[1], sys.argv[3], sys.argv[4], resume="--resume" in sys.argv)) else 1)
