"""Measure what an agent's tools cost beside the work itself: a command in the kept shell, a time-out, a call.

    python bench/agent_tools.py [--smoke] [--json FILE]

What is compared takes turns, so that a busy machine slows both alike. Figures are medians, or where it says so the
99th percentile.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from cfs.wire import ToolCall
from cfs_agents.tools import AsyncPersistentShell, FileTools, PersistentShell, Registry, agent_grants, agent_shell, tool
from cfs_filesystem import DiskFileSystem

TIMEOUT = 2.0


class Bar(NamedTuple):
    """One line of the table: what it is, how it is called among the figures, its unit, and what it should be."""

    what: str
    name: str
    unit: str
    aim: float | None


BARS = [
    Bar("`true` in the blocking shell", "sync true", "ms", 5.0),
    Bar("the same, 99th percentile", "sync true p99", "ms", None),
    Bar("`true` in the asynchronous shell", "async true", "ms", 5.0),
    Bar("`/bin/true`, a process, in the kept shell", "sync process", "ms", None),
    Bar("`bash -c /bin/true`, a new shell for it", "new bash", "ms", None),
    Bar("starting a shell, with its first command", "start", "ms", None),
    Bar("ending a shell", "close", "ms", None),
    Bar("10 MB of output", "ten megabytes", "ms", None),
    Bar(f"time-out of {TIMEOUT:g} s on `sleep 60`: what it takes beyond them", "timeout excess", "ms", 1000.0),
    Bar("a call of an async tool that does nothing", "async call", "µs", None),
    Bar("a call of a sync tool that does nothing", "sync call", "µs", None),
    Bar("`read_file` of 400 bytes, as a call", "read call", "µs", None),
    Bar("`read_file` of 400 bytes, at the handle", "read handle", "µs", None),
]


@tool("Do nothing")
async def nothing(text: str, number: int = 1) -> str:
    """Return what is given."""
    return f"{text}{number}"


@tool("Do nothing, in a thread")
def nothing_blocking(text: str, number: int = 1) -> str:
    """Return what is given."""
    return f"{text}{number}"


def seconds_of(action: Callable[[], object]) -> float:
    """Measure one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


async def async_seconds_of(action: Callable[[], Awaitable[object]]) -> float:
    """Measure one awaited call."""
    start = time.perf_counter()
    await action()
    return time.perf_counter() - start


def blocking_figures(root: Path, rounds: int, starts: int) -> dict[str, float]:
    """Measure the blocking shell beside new ones, in milliseconds."""
    taken: dict[str, list[float]] = {}
    with PersistentShell(agent_shell(root)) as shell:
        shell.run("true")
        for _ in range(rounds):
            for name, action in {
                "sync true": lambda: shell.run("true"),
                "sync process": lambda: shell.run("/bin/true"),
                "new bash": lambda: subprocess.run(["bash", "-c", "/bin/true; exit"], check=True, capture_output=True),
            }.items():
                taken.setdefault(name, []).append(seconds_of(action))
        taken["ten megabytes"] = [seconds_of(lambda: shell.run("seq 1400000")) for _ in range(starts)]
        excess = seconds_of(lambda: shell.run("sleep 60", timeout=TIMEOUT)) - TIMEOUT
    for _ in range(starts):
        shell = PersistentShell(agent_shell(root))
        taken.setdefault("start", []).append(seconds_of(partial(shell.run, "true")))
        taken.setdefault("close", []).append(seconds_of(shell.close))
    figures = {name: statistics.median(values) * 1e3 for name, values in taken.items()}
    figures["sync true p99"] = sorted(taken["sync true"])[int(rounds * 0.99)] * 1e3
    figures["timeout excess"] = excess * 1e3
    return figures


async def async_figures(root: Path, rounds: int) -> dict[str, float]:
    """Measure the asynchronous shell in milliseconds, and calls of tools in microseconds."""
    (root / "workspace" / "a.txt").write_text("a line of text\n" * 27)
    files = DiskFileSystem(root)
    handle = files.create_handle(agent_grants())
    registry = Registry([nothing, nothing_blocking, *FileTools(handle).tools()])
    calls = {
        "async call": ToolCall(id="1", name="nothing", arguments={"text": "a", "number": 2}),
        "sync call": ToolCall(id="1", name="nothing_blocking", arguments={"text": "a", "number": 2}),
        "read call": ToolCall(id="1", name="read_file", arguments={"path": "a.txt"}),
    }
    taken: dict[str, list[float]] = {name: [] for name in (*calls, "read handle", "async true")}
    async with AsyncPersistentShell(agent_shell(root)) as shell:
        await shell.run("true")
        for _ in range(rounds):
            taken["async true"].append(await async_seconds_of(lambda: shell.run("true")))
            for name, call in calls.items():
                taken[name].append(await async_seconds_of(partial(registry.call, call)))
            taken["read handle"].append(seconds_of(lambda: handle.read_file("/workspace/a.txt")))
    files.close()
    return {name: statistics.median(values) * (1e3 if name == "async true" else 1e6) for name, values in taken.items()}


def table_of(figures: dict[str, float]) -> str:
    """Set the figures beside what they should be."""
    rows = ["| what | measured | aim | within |", "|---|---|---|---|"]
    for what, name, unit, aim in BARS:
        value = figures[name]
        judged = ("", "") if aim is None else (f"≤ {aim:g} {unit}", "yes" if value <= aim else "**no**")
        rows.append(f"| {what} | {value:.{0 if value >= 100 else 2}f} {unit} | {judged[0]} | {judged[1]} |")
    return "\n".join(rows)


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few calls only, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    rounds, starts = (5, 2) if arguments.smoke else (400, 20)
    with tempfile.TemporaryDirectory() as name:
        figures = blocking_figures(Path(name), rounds, starts)
        figures |= asyncio.run(async_figures(Path(name), rounds))
    print(f"Medians of {rounds} rounds that take turns; starts, ends and long outputs of {starts}.\n")
    print(table_of(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
