"""Measure what a long conversation costs: of each prompt only what is new should be computed.

    python bench/agent_turns.py [--smoke] [--turns N] [--model NAME] [--context N] [--steps] [--json FILE]

A file agent works for 200 turns, and `cfs serve` with the embedded model reads each of its prompts and answers with one
token; what the agent does next is written here, so that every run is the same. The server says how many tokens each
prompt has and how many of them it knew. Where the conversation was shortened before a turn, the rest of it is new.
`--steps` also prints the cached part of each prompt.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import structlog

from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.events import ContextShortened, RoundStarted
from cfs_agents.context import CachedCounter
from cfs_agents.loop.model import CompleteResponse, Item
from cfs_agents.loop.server_model import ModelSettings, ServerCounter, ServerModel
from cfs_agents.tools import CommandMode
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig

CONTEXT = 1_300
"""Tokens of the conversation: with the tools and the reply that is what the embedded model has room for."""
EVERY = 20
"""Each so many turns a command writes much."""


@contextmanager
def serving(model: str) -> Iterator[str]:
    """Run `cfs serve` on a free port; its URL."""
    command = [str(Path(sys.executable).with_name("cfs")), "serve", "--port", "0", "--log-level", "error"]
    command += ["--model", model] if model else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)


class Tethered:
    """Lets a server's model read each prompt, and goes on with the next command."""

    def __init__(self, model: ServerModel, steps: int) -> None:
        self.costs: list[Usage] = []
        self.seconds = 0.0
        self._model = model
        self._steps = steps

    async def context_window(self) -> int | None:
        """Return what the server's model reads."""
        return await self._model.context_window()

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Ask the server for a token, and reply with the next step."""
        start = time.perf_counter()
        async for item in self._model.stream(messages, tools):
            if isinstance(item, CompleteResponse):
                self.costs.append(item.usage)
        self.seconds += time.perf_counter() - start
        step = len(self.costs)
        if step > self._steps:
            yield CompleteResponse(Message(role="assistant", content="Done."), "stop", self.costs[-1])
            return
        command = f"seq {step} {step + (600 if step % EVERY == 7 else 8)}"
        call = ToolCall(id=f"call_{step}", name="execute_command", arguments={"command": command})
        message = Message(role="assistant", content=f"Step {step}.", tool_calls=(call,))
        yield CompleteResponse(message, "tool_calls", self.costs[-1])


@dataclass
class Told:
    """What a run told: the cost of each turn, and the turns before which the conversation was shortened."""

    costs: list[Usage] = field(default_factory=list)
    shortened: set[int] = field(default_factory=set)
    overhead_ms: float = 0.0


async def run(turns: int, name: str = "", context: int = CONTEXT) -> Told:
    """Let an agent work for so many turns with a model, the embedded one by default."""
    told = Told()
    with serving(name) as url, tempfile.TemporaryDirectory() as root:
        async with AsyncClient(url) as client:
            model = Tethered(ServerModel(client, ModelSettings(temperature=0, max_tokens=1)), turns)
            config = FileSystemAgentConfig(
                max_rounds=turns + 1,
                context_tokens=context,
                counter=CachedCounter(ServerCounter(client)),
                commands=CommandMode.HOST,
            )
            async with FileSystemAgent(project_root=root, model=model, config=config) as agent:
                start, number = time.perf_counter(), 0
                async for event in agent.run_stream("Count."):
                    if isinstance(event, RoundStarted):
                        number = event.number
                    elif isinstance(event, ContextShortened):
                        told.shortened.add(number)
                whole = time.perf_counter() - start
                assert agent.outcome.ok, agent.outcome.detail
        told.costs = model.costs
        told.overhead_ms = (whole - model.seconds) * 1000 / len(model.costs)
    return told


def step_lines(told: Told) -> str:
    """Write a line for each prompt: its number, its tokens, those that were cached, and their part in percent."""
    return "\n".join(
        f"{number} {cost.cached_tokens} / {cost.prompt_tokens} {100 * cost.cached_tokens / cost.prompt_tokens:.1f} %"
        f"{' shortened' if number in told.shortened else ''}"
        for number, cost in enumerate(told.costs, 1)
    )


def figures(told: Told) -> dict[str, float]:
    """Sum up a run."""
    computed = [cost.prompt_tokens - cost.cached_tokens for cost in told.costs]
    grown = [after.prompt_tokens - before.prompt_tokens for before, after in pairwise(told.costs)]
    usual = [
        (new, more)
        for number, (new, more) in enumerate(zip(computed[1:], grown, strict=True), 2)
        if number not in told.shortened and more > 0
    ]
    return {
        "turns": len(told.costs),
        "prompt tokens": sum(cost.prompt_tokens for cost in told.costs),
        "computed": sum(computed),
        "turns with new text only": len(usual),
        "computed a turn": statistics.median(new for new, _ in usual),
        "new a turn": statistics.median(more for _, more in usual),
        "most above the new": max(new - more for new, more in usual),
        "lowest cached percent where not shortened": min(
            100 * cost.cached_tokens / cost.prompt_tokens
            for number, cost in enumerate(told.costs[1:], 2)
            if number not in told.shortened
        ),
        "shortened": len(told.shortened),
        "computed where shortened": statistics.median([computed[n - 1] for n in told.shortened] or [0]),
        "agent ms a turn": told.overhead_ms,
    }


def table(told: dict[str, float], turns: int) -> str:
    """Write the figures as docs/benchmarks.md has them."""
    names = [name for name in told if name != "agent ms a turn"]
    rows = [f"| {name} | {told[name]:,.0f} |" for name in names]
    rows.append(f"| ms a turn beside the model, with the command | {told['agent ms a turn']:.1f} |")
    return "\n".join([f"| {turns} turns | |", "|---|---|", *rows])


def main() -> None:
    """Measure, print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="twelve turns, for tests")
    parser.add_argument("--turns", type=int, default=200, help="turns of the agent (default: 200)")
    parser.add_argument("--model", default="", help="a model of `cfs serve`, instead of the embedded one")
    parser.add_argument("--context", type=int, default=CONTEXT, help=f"tokens of the conversation (default: {CONTEXT})")
    parser.add_argument("--steps", action="store_true", help="print the cached part of each prompt")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    turns = 12 if arguments.smoke else arguments.turns
    told = asyncio.run(run(turns, arguments.model, arguments.context))
    found = figures(told)
    if arguments.steps:
        print(step_lines(told))
    print(table(found, turns))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
