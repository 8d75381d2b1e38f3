"""The console of an agent."""

from cfs_agents.main.blocks import Block, Passage, StreamProcessor, Void
from cfs_agents.main.console import ConsoleStreamHandler, IncrementalOutputFormatter

__all__ = [
    "Block",
    "ConsoleStreamHandler",
    "IncrementalOutputFormatter",
    "Passage",
    "StreamProcessor",
    "Void",
]
