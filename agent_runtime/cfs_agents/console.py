"""The console of an agent."""

from cfs_agents.main.console import (
    Block,
    ConsoleStreamHandler,
    IncrementalOutputFormatter,
    Passage,
    StreamProcessor,
    Void,
)

__all__ = [
    "Block",
    "ConsoleStreamHandler",
    "IncrementalOutputFormatter",
    "Passage",
    "StreamProcessor",
    "Void",
]
