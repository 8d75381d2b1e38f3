"""Measure what a tree of agents costs beside its models and tools, and what its prompts cost an engine.

    python bench/fibre.py [--smoke] [--json FILE]

Models answer at once and the tool does nothing, so all that is left is ours: a spawn, and a step (one reply with one
call) of each of fifty sub-agents, without a server and with one in a process of its own. The prompts of fifty children
that share 4,000 tokens (the fixed part and the tools, in the tokens of a random model) go to the engine; counted is
what it evaluates, over what is shared once and the rest of each. Medians of runs.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import structlog

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import make_random_gguf
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.loop.model import CompleteResponse, Item, Model
from cfs_agents.loop.server_model import ModelSettings, ServerModel
from cfs_agents.tools import tool
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent

CFS = Path(sys.executable).with_name("cfs")


class Figure(NamedTuple):
    """One line of the table: what it is, how it is called among the figures, and the most that it may be."""

    what: str
    name: str
    most: float


FIGURES = [
    Figure("a spawn, ms", "spawn", 10.0),
    Figure("a spawn, with a server, ms", "spawn served", 10.0),
    Figure("a step of one of 50 sub-agents, ms", "step", 2.0),
    Figure("a step of one of 50 sub-agents, with a server, ms", "step served", 2.0),
    Figure("50 children that share 4,000 tokens: evaluated / ideal", "evaluated", 1.1),
]


@tool("Do nothing")
async def nothing(step: int) -> str:  # noqa: ARG001 - or the step would be the last one again
    """Return a word."""
    return "done"


class Root:
    """Spawns so many children, one a reply, waits for each, and answers."""

    def __init__(self, children: int) -> None:
        self._children = children

    async def stream(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),  # noqa: ARG002 - the signature is the protocol's
    ) -> AsyncGenerator[Item]:
        """Reply at once."""
        made = sum(message.role == "assistant" for message in messages)
        name = f"child{made % self._children:02}"
        if made < self._children:
            yield _calls(made, "sys_spawn_agent", agent_name=name, role_description="works", **_TASK)
        elif made < 2 * self._children:
            yield _calls(made, "sys_wait_agent", agent_id=name)
        else:
            yield CompleteResponse(Message(role="assistant", content="Done."), "stop", Usage())


_TASK = {"system_instruction": "You work.", "task_goal": "Do your part of the work, and report."}


class Worker:
    """Calls the tool so many times once `begin` is set, then reports."""

    def __init__(self, steps: int, begin: asyncio.Event) -> None:
        self._steps = steps
        self._begin = begin

    async def stream(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),  # noqa: ARG002
    ) -> AsyncGenerator[Item]:
        """Reply at once."""
        await self._begin.wait()
        made = sum(message.role == "assistant" for message in messages)
        if made < self._steps:
            yield _calls(made, "nothing", step=made)
        else:
            yield _calls(made, "sys_finish_task", status="success", summary="done")


class Once:
    """A model whose replies are taken as they are: a random one never comes to an end by itself."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Ask, and let a reply that was cut off pass for a whole one."""
        async for item in self._model.stream(messages, tools):
            yield replace(item, finish_reason="stop") if isinstance(item, CompleteResponse) else item


def _calls(number: int, name: str, **arguments: Any) -> CompleteResponse:
    call = ToolCall(id=f"call_{number}", name=name, arguments=arguments)
    return CompleteResponse(Message(role="assistant", content="", tool_calls=(call,)), "tool_calls", Usage())


@asynccontextmanager
async def served(*flags: str) -> AsyncIterator[str]:
    """A server in a process of its own."""
    command = [str(CFS), "serve", "--port", "0", "--log-level", "error", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - before anything is timed
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.communicate()


class Cost(NamedTuple):
    """Milliseconds of a spawn (the median) and of a step, by the clock and by the processor of this process.

    The processor's part of a spawn holds the child's beginning, up to its first question.
    """

    spawn: float
    step: float
    spawn_processor: float
    step_processor: float


async def tree_cost(children: int, steps: int, url: str | None, number: int) -> Cost:
    """What it costs to spawn children, and what each step of each costs, which all work at once."""
    begin = asyncio.Event()
    models: dict[str, Model] = {}

    def model(name: str) -> Model:
        return models.setdefault(name, Worker(steps, begin) if name.startswith("child") else Root(children))

    config = FibreConfig(tools=[nothing], max_turns=steps + 2, root_max_turns=3 * children)
    with tempfile.TemporaryDirectory() as folder:
        client = AsyncClient(url) if url else None
        async with FibreAgent(folder, model, config, session=f"tree{number}", client=client) as agent:
            spawns, called, start, began, middle = [], 0.0, 0.0, time.process_time(), 0.0
            async with aclosing(agent.run_stream("Go.")) as chunks:
                async for chunk in chunks:
                    if chunk.kind == "call" and chunk.name == "sys_spawn_agent":
                        called = time.perf_counter()
                    elif chunk.kind == "result" and chunk.name == "sys_spawn_agent":
                        spawns.append(time.perf_counter() - called)
                        if len(spawns) == children:
                            start, middle = time.perf_counter(), time.process_time()
                            begin.set()
            seconds, processor = time.perf_counter() - start, time.process_time() - middle
            assert agent.report is not None
            assert agent.report.ok, agent.report
        if client is not None:
            await client.close()
    made = children * (steps + 1)
    median = statistics.median(spawns)
    return Cost(*(1000 * each for each in (median, seconds / made, (middle - began) / children, processor / made)))


async def evaluated(children: int) -> tuple[float, int]:
    """Prompt tokens evaluated for all children over each distinct one once, and how many tokens they share."""
    with tempfile.TemporaryDirectory() as place:
        weights = make_random_gguf.make(Path(place) / "random-small.gguf", "small", context=32_768)
        async with (
            served("--model", str(weights), "--max-wait-seconds", "3600") as url,
            AsyncClient(url, timeout=600) as client,
        ):
            asked = Once(ServerModel(client, ModelSettings(max_tokens=4, temperature=0)))

            def model(name: str) -> Model:
                return asked if name.startswith("child") else Root(children)

            config = FibreConfig(max_turns=1, timeout=None)
            with tempfile.TemporaryDirectory() as folder:
                async with FibreAgent(folder, model, config, client=client) as agent:
                    await agent.run("Go.")
                    usages = [each.record.usage for each in agent.agents.values() if not each.is_root]
    shared = max(usage.cached_tokens for usage in usages)
    ideal = shared + sum(usage.prompt_tokens - shared for usage in usages)
    return sum(usage.prompt_tokens - usage.cached_tokens for usage in usages) / ideal, shared


async def measure(*, smoke: bool) -> dict[str, float]:
    """Take turns, so that a busy machine slows all alike."""
    children, steps, rounds = (4, 2, 1) if smoke else (50, 10, 3)
    runs: dict[str, list[float]] = {figure.name: [] for figure in FIGURES}
    async with served("--engine", "scripted") as url:
        for number in range(rounds):
            for suffix, place in (("", None), (" served", url)):
                for name, value in (await tree_cost(children, steps, place, number))._asdict().items():
                    runs.setdefault(f"{name}{suffix}", []).append(value)
    ratio, shared = await evaluated(children)
    figures = {name: statistics.median(values) for name, values in runs.items() if values}
    return figures | {"evaluated": ratio, "shared": float(shared)}


def table(figures: dict[str, float]) -> str:
    """Write the figures as docs/benchmarks.md has them."""
    rows = [
        f"| {what} | {figures[name]:.2f} | {_processor(name, figures)} | ≤ {most:g}"
        f" | {'yes' if figures[name] <= most else '**no**'} |"
        for what, name, most in FIGURES
    ]
    return "\n".join(["| what | measured | of it our processor | aim | within |", "|---|---|---|---|---|", *rows])


def _processor(name: str, figures: dict[str, float]) -> str:
    kind, _, served = name.partition(" ")
    value = figures.get(f"{kind}_processor{' ' if served else ''}{served}")
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    """Measure, print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="once, for tests")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    figures = asyncio.run(measure(smoke=arguments.smoke))
    print(table(figures))
    print(f"\nshared: {figures['shared']:.0f} tokens")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
