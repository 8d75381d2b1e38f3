"""Measure what it costs to keep an agent's context short: off-loading an item, and preparing a long conversation.

    python bench/agent_context.py [--smoke] [--json FILE]

An item of 1 MB is off-loaded (aim: 10 ms) with and without waiting for the disk, in turns, so the difference is what
the disk costs; the processor's time is told apart, for other programs take none of it. A conversation of 200 turns with
large results is prepared before each call of its model.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cfs.wire import Message, ToolCall
from cfs_agents.context import (
    ContextFileSystem,
    ContextItem,
    EphemeralPolicy,
    SelectiveCompactionPolicy,
    WorkingContext,
    redact,
)

BAR_MS = 10.0
MEGABYTE = 1 << 20
LIMIT = 32_000
_SEED = 11


def log_lines(size: int) -> str:
    """Lines as a server writes them."""
    line = "2026-01-02 03:04:05 INFO worker {0} handled request {1} of user {2} in {3} ms, token bucket at {4}\n"
    lines = (line.format(n % 7, n, n * 7919 % 1000, n % 97, n % 50) for n in range(size // 80))
    return "".join(lines)[:size]


def hexadecimal(size: int) -> str:
    """Lines of random digits: the worst to compress that is text."""
    digits = random.Random(_SEED).randbytes(size // 2).hex()
    return "\n".join(digits[start : start + 100] for start in range(0, size, 101))


def source_code(size: int) -> str:
    """Python as it is written, with names that tell of keys and tokens, as often as there is need."""
    files = sorted((Path(__file__).parents[1] / "server").rglob("*.py"))
    code = "".join(path.read_text() for path in files)
    return (code * (size // len(code) + 1))[:size]


def result(content: str, call_id: str, tool: str = "shell") -> Message:
    """What a tool answered."""
    return Message(role="tool", content=content, tool_call_id=call_id, name=tool)


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Call it; return milliseconds, and those of the processor."""
    start, busy = time.perf_counter(), time.process_time()
    action()
    return (time.perf_counter() - start) * 1000, (time.process_time() - busy) * 1000


def offloading(root: Path, content: str, rounds: int) -> dict[str, float]:
    """Medians in milliseconds of off-loading items with this content, waiting for the disk and not, in turns."""
    waited, hasty, busy, redacted = [], [], [], []
    with ContextFileSystem(root, durable=True) as safe, ContextFileSystem(root, durable=False) as quick:
        for number in range(rounds):
            items = [ContextItem.of(result(f"{number} {content}", f"call_{number}"))]
            waited.append(timed(partial(safe.offload, items))[0])
            taken, cpu = timed(partial(quick.offload, items))
            hasty.append(taken)
            busy.append(cpu)
            redacted.append(timed(partial(redact, content))[1])
        restored = [timed(partial(safe.restore, record.item_id))[0] for record in safe.history()]
    columns = {"durable": waited, "hasty": hasty, "cpu": busy, "redaction": redacted, "restore": restored}
    return {name: statistics.median(values) for name, values in columns.items()}


async def conversation(root: Path, turns: int, *, durable: bool) -> dict[str, float]:
    """Prepare a growing conversation before each turn: results of 10 to 6,000 tokens, one tool of three ephemeral."""
    chance = random.Random(_SEED)
    with ContextFileSystem(root, durable=durable) as files:
        context = WorkingContext(
            files, ephemeral=EphemeralPolicy({"shot": 3}), compaction=SelectiveCompactionPolicy(LIMIT)
        )
        context.add(Message(role="system", content="You work on files."))
        context.add(Message(role="user", content="The task."))
        taken: list[float] = []
        idle: list[float] = []
        most = 0
        for turn in range(turns):
            tool = chance.choice(["shell", "read", "shot"])
            call = ToolCall(id=f"call_{turn}", name=tool, arguments={"turn": turn})
            context.add(Message(role="assistant", content=f"Step {turn}.", tool_calls=(call,)))
            context.add(result(log_lines(chance.randrange(80, 24_000)), call.id, tool))
            for times in (taken, idle):  # the second time there is nothing to do
                start = time.perf_counter()
                await context.prepare()
                times.append((time.perf_counter() - start) * 1000)
            most = max(most, context.usage.tokens)
        before = len(files.history())
        files.close()
        opening = timed(files.history)[0]
    return {
        "median": statistics.median(taken),
        "slowest": max(taken),
        "idle": statistics.median(idle),
        "most tokens": most,
        "items on disk": before,
        "opening": opening,
    }


def table_of(sizes: dict[str, dict[str, float]], talks: dict[str, dict[str, float]]) -> str:
    """Set the figures beside the aim."""
    said = ["| off-loaded | ms | not waiting for the disk | processor | of it redaction | restored | within 10 ms |"]
    said.append("|---|---|---|---|---|---|---|")
    for name, figures in sizes.items():
        numbers = " | ".join(f"{figures[key]:.1f}" for key in ("durable", "hasty", "cpu", "redaction", "restore"))
        said.append(f"| {name} | {numbers} | {'yes' if figures['durable'] <= BAR_MS else '**no**'} |")
    said.append("")
    said.append("| 200 turns prepared | median ms | slowest | nothing to do | most tokens | items on disk | opening |")
    said.append("|---|---|---|---|---|---|---|")
    for name, figures in talks.items():
        said.append(
            f"| {name} | {figures['median']:.1f} | {figures['slowest']:.1f} | {figures['idle']:.2f} |"
            f" {figures['most tokens']:,} of {LIMIT:,} | {figures['items on disk']:.0f} | {figures['opening']:.0f} ms |"
        )
    return "\n".join(said)


def main() -> None:
    """Measure, print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few rounds only, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rounds, turns = (3, 10) if arguments.smoke else (31, 200)
    contents = {
        "1 MB of log lines": log_lines(MEGABYTE),
        "1 MB of hexadecimal digits": hexadecimal(MEGABYTE),
        "1 MB of source code": source_code(MEGABYTE),
        "10 KB of log lines": log_lines(10_240),
    }
    with tempfile.TemporaryDirectory() as name:
        sizes = {what: offloading(Path(name), content, rounds) for what, content in contents.items()}
        talks = {
            what: asyncio.run(conversation(Path(name), turns, durable=durable))
            for what, durable in (("waiting for the disk", True), ("without", False))
        }
    print(table_of(sizes, talks))
    if arguments.json:
        arguments.json.write_text(json.dumps({"offloading": sizes, "conversation": talks}, indent=2) + "\n")


if __name__ == "__main__":
    main()
