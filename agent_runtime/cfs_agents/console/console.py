"""The console of an agent: its events go in, and a person can read what comes out (A8)."""

import sys
from typing import TextIO

from cfs_agents.console.printer import Printer
from cfs_agents.console.stream import BlockStream
from cfs_agents.events import AgentEvent
from cfs_agents.llm import Chunk, Reply


class Console:
    """Shows what an agent does, on standard output unless told otherwise.

        console = Console()
        async for event in agent.run("Tidy up."):
            console.show(event)

    It takes the chunks and replies of a bare model, too. Nothing that happens to its output is an error: when the
    reader of a pipe has left, `closed` says so.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._stream = BlockStream()
        self._printer = Printer(out or sys.stdout)

    @property
    def closed(self) -> bool:
        """Whether nobody reads any more."""
        return self._printer.closed

    def show(self, event: AgentEvent | Chunk | Reply) -> None:
        """Show what an event completes."""
        for block in self._stream.feed(event):
            self._printer.print(block)

    def reset(self) -> None:
        """Show what was held back, and begin another conversation: operations and outputs count anew."""
        for block in self._stream.finish():
            self._printer.print(block)
        self._stream = BlockStream()
        self._printer.reset()
