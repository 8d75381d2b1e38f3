"""The console of an agent."""

from cfs_agents.main.blocks import Block, DiscardedReply, Passage, StreamProcessor
from cfs_agents.main.console import ConsoleStreamHandler, IncrementalOutputFormatter

__all__ = [
    "Block",
    "ConsoleStreamHandler",
    "DiscardedReply",
    "IncrementalOutputFormatter",
    "Passage",
    "StreamProcessor",
]
