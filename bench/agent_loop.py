"""Measure what the loop of an agent costs beside its model and its tools: a step is one reply with one call.

    python bench/agent_loop.py [--smoke] [--json FILE]

The model answers at once and the tool does nothing, so all that is left is ours. The file agent writes each step down
and waits for the disk; how long that takes is told apart, by the same agent in a directory of memory. Medians of runs.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from cfs.wire import Message, ToolCall, Usage
from cfs_agents.loop.agent import Agent, AgentConfig
from cfs_agents.loop.model import CompleteResponse, Item
from cfs_agents.tools import tool
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig

BAR_MS = 5.0
MEMORY = next((place for place in [Path("/dev/shm")] if place.is_dir()), None)  # noqa: S108 - only for a while


class Bar(NamedTuple):
    """One line of the table: what it is, and how it is called among the figures."""

    what: str
    name: str


BARS = [
    Bar("`Agent`, a task of ten steps", "agent 10"),
    Bar("`Agent`, a task of a hundred steps", "agent 100"),
    Bar("`FileSystemAgent`, a task of ten steps, in memory", "file agent in memory 10"),
    Bar("`FileSystemAgent`, a task of ten steps, on the disk", "file agent 10"),
    Bar("`FileSystemAgent`, a task of a hundred steps, on the disk", "file agent 100"),
]


@tool("Do nothing")
async def nothing(number: int) -> str:  # noqa: ARG001 - or the step would be the last one again
    """Return a word."""
    return "done"


class SteppingModel:
    """Calls the tool so many times, then answers; it syncs when it can do nothing else."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._made = 0

    async def stream(
        self,
        messages: Sequence[Message],  # noqa: ARG002 - the signature is the protocol's
        tools: Sequence[dict[str, Any]] = (),
    ) -> AsyncGenerator[Item]:
        """Reply at once."""
        if self._made < self._steps:
            call = ToolCall(id=f"call_{self._made}", name="nothing", arguments={"number": self._made})
            if tools[0]["function"]["name"] == "sync_context":
                call = ToolCall(
                    id="sync", name="sync_context", arguments={"new_context_content": "# Current Task\nGo."}
                )
            else:
                self._made += 1
            yield CompleteResponse(Message(role="assistant", content="", tool_calls=(call,)), "tool_calls", Usage())
        else:
            yield CompleteResponse(Message(role="assistant", content="Done."), "stop", Usage())


async def agent_ms(steps: int) -> float:
    """Milliseconds for each step of a task, without files."""
    config = AgentConfig(tools=[nothing], max_rounds=steps + 1, offload_enabled=False)
    agent = Agent(SteppingModel(steps), config)
    start = time.perf_counter()
    assert (await agent.query("Go.")).ok
    return (time.perf_counter() - start) * 1000 / steps


async def file_agent_ms(steps: int, folder: Path | None) -> float:
    """The same with a directory, on the disk of temporary files or in a folder."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        config = FileSystemAgentConfig(tools=[nothing], max_rounds=2 * steps)
        async with FileSystemAgent(project_root=root, model=SteppingModel(steps), config=config) as agent:
            start = time.perf_counter()
            assert (await agent.run("Go.")).ok
            return (time.perf_counter() - start) * 1000 / steps


async def measure(*, smoke: bool) -> dict[str, float]:
    """Take turns, so that a busy machine slows all alike."""
    runs: dict[str, list[float]] = {bar.name: [] for bar in BARS}
    for _ in range(1 if smoke else 15):
        runs["agent 10"].append(await agent_ms(10))
        runs["agent 100"].append(await agent_ms(10 if smoke else 100))
        runs["file agent in memory 10"].append(await file_agent_ms(10, MEMORY))
        runs["file agent 10"].append(await file_agent_ms(10, None))
        runs["file agent 100"].append(await file_agent_ms(10 if smoke else 100, None))
    return {name: statistics.median(values) for name, values in runs.items()}


def table(figures: dict[str, float]) -> str:
    """Write the figures as docs/benchmarks.md has them."""
    rows = [
        f"| {what} | {figures[name]:.2f} | ≤ {BAR_MS:g} | {'yes' if figures[name] <= BAR_MS else '**no**'} |"
        for what, name in BARS
    ]
    return "\n".join(["| what | ms a step | aim | within |", "|---|---|---|---|", *rows])


def main() -> None:
    """Measure, print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="once, for tests")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    figures = asyncio.run(measure(smoke=arguments.smoke))
    print(table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
