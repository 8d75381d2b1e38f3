"""What the agents' MCP client adds to a call, against the library's client alone.

    scripts/bench mcp_client [--calls N]

Two servers of the same kind run over standard input and output, and the clients take turns. The agents' side includes
the check of the arguments and the decision of the gate by a rule. Prints medians in milliseconds; the bar is 5 ms.
"""

import argparse
import asyncio
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from mcp import Client, StdioServerParameters

from cfs.wire import ToolCall
from cfs_agents.guards.rules import Policy, RulesGate, Scope
from cfs_agents.guards.rules.rules_file import parse_rules
from cfs_agents.mcp.config import McpServer
from cfs_agents.mcp.tools import McpTools
from cfs_agents.tools import CommandMode, Consent, Permission, Registry
from rest import verdict

BAR_MS = 5.0
SERVER = '''
from mcp.server.mcpserver import MCPServer
server = MCPServer("adder")
@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
server.run()
'''


async def milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    await call()
    return (time.perf_counter() - begin) * 1000


async def measure(calls: int, folder: Path) -> tuple[list[float], list[float]]:
    """Return the times of the library's client and of the agents' one."""
    program = folder / "adder.py"
    program.write_text(SERVER)
    policy, consent = Policy(rules=parse_rules("allow = ['mcp(adder/*)']", Path("rules.toml"))), Consent(None)

    async def never(_: object) -> Permission:
        raise AssertionError("the rule allows the call")

    gate = RulesGate(
        policy,
        Scope(folder),
        lambda: policy.defaults(CommandMode.NONE, attended=False),
        consent=consent,
        ask=never,
        warn=print,
    )
    settings = McpServer(command=sys.executable, args=(str(program),))
    bare_server = StdioServerParameters(command=sys.executable, args=[str(program)])
    async with McpTools({"adder": settings}, folder) as mcp, Client(bare_server) as bare:
        tools = Registry(mcp.tools(), gate=gate)
        call = ToolCall(id="1", name="mcp__adder__add", arguments={"a": 17, "b": 25})
        assert (await tools.call(call)).text == "42"
        rows = [
            (
                await milliseconds(lambda: bare.call_tool("add", {"a": 17, "b": 25})),
                await milliseconds(lambda: tools.call(call)),
            )
            for _ in range(calls)
        ]
    return [row[0] for row in rows], [row[1] for row in rows]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder:
        bare, ours = asyncio.run(measure(parser.parse_args().calls, Path(folder)))
    added = statistics.median(ours) - statistics.median(bare)
    print(
        f"library {statistics.median(bare):.2f} ms, agents {statistics.median(ours):.2f} ms, added {added:.2f} ms,"
        f" within {BAR_MS:g} ms: {verdict(added <= BAR_MS)}"
    )


if __name__ == "__main__":
    main()
