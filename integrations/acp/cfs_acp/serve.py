"""Runs the agent of an editor on standard input and output, until the input ends or a signal comes."""

import asyncio
import signal
import sys
from contextlib import suppress
from typing import Any, cast

import structlog
from acp import run_agent

from cfs.transports import tracing
from cfs.transports.async_http import AsyncClient
from cfs_acp.agent import EditorAgent
from cfs_acp.session import AgentOptions
from cfs_acp.stdio import StdioTransport


def serve(options: AgentOptions, url: str | None, token: str | None) -> None:
    """Serve an editor. Remarks go to standard error; only messages of the protocol go to standard output."""
    errors = structlog.make_filtering_bound_logger(40)
    structlog.configure(wrapper_class=errors, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    tracing.start("cfs-acp")
    try:
        asyncio.run(_serve(options, url, token))
    finally:
        tracing.stop()


async def _serve(options: AgentOptions, url: str | None, token: str | None) -> None:
    serving = asyncio.create_task(_connected(options, url, token))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving


async def _connected(options: AgentOptions, url: str | None, token: str | None) -> None:
    async with AsyncClient(url, token) as client:
        agent = EditorAgent(client, options)
        try:
            # Forks and the other calls that the package counts as unstable are announced among the capabilities.
            await run_agent(cast("Any", agent), StdioTransport(), use_unstable_protocol=True)
        finally:
            await agent.close()
