"""Count what a step of an agent costs the disk: flushes (fsync) and bytes, for a file agent and for the root of a tree.

    python bench/agent_disk.py [--steps 50]

A step is one reply with one `write_file`, of 20 bytes. The counts do not depend on the machine.
"""

import argparse
import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from cfs.wire import Message
from cfs_agents.loop.model import Item
from cfs_agents.main.testing import ScriptedModel, calls, says
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig


class WritingModel:
    """Writes so many files, then answers."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._made = 0

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Reply."""
        self._made += 1
        line = says("Done.")
        if self._made <= self._steps:
            line = calls("write_file", path=f"{self._made}.txt", content="x" * 20)
        async for item in ScriptedModel([line]).stream(messages, tools):
            yield item


@dataclass
class Disk:
    """What this process has written."""

    flushes: int = 0

    def watch(self) -> None:
        """Count the flushes from now on."""
        real = os.fsync

        def fsync(file: Any) -> None:
            self.flushes += 1
            real(file)

        os.fsync = fsync  # type: ignore[assignment]

    @staticmethod
    def written() -> int:
        """Return the bytes that this process has passed to `write`."""
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


async def file_agent(root: Path, steps: int) -> None:
    """Run a task of a file agent."""
    config = FileSystemAgentConfig(max_rounds=steps + 2)
    async with FileSystemAgent(project_root=root, model=WritingModel(steps), config=config) as agent:
        await agent.run("Write files.")


async def tree(root: Path, steps: int) -> None:
    """Run a task of the root of a tree."""
    config = FibreConfig(root_max_turns=steps + 2)
    async with FibreAgent(root, lambda _: WritingModel(steps), config) as agent:
        await agent.run("Write files.")


def measure(disk: Disk, run: Callable[[Path, int], Awaitable[None]], steps: int) -> tuple[float, float]:
    """Return flushes and bytes a step: the difference between a long task and a short one."""
    counts = []
    for number in (10, 10 + steps):
        with tempfile.TemporaryDirectory() as folder:
            before = disk.flushes, disk.written()
            asyncio.run(run(Path(folder), number))  # type: ignore[arg-type]
            counts.append((disk.flushes - before[0], disk.written() - before[1]))
    (few, small), (many, large) = counts
    return (many - few) / steps, (large - small) / steps


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    disk = Disk()
    disk.watch()
    print("| agent | flushes a step | bytes a step |\n|---|--:|--:|")
    for name, run in (("file agent", file_agent), ("root of a tree", tree)):
        flushes, size = measure(disk, run, steps)
        print(f"| {name} | {flushes:.1f} | {size:,.0f} |")


if __name__ == "__main__":
    main()
