"""What a person sees of an agent at work, at a terminal or through a pipe (A8)."""

from cfs_agents.console.console import Console
from cfs_agents.console.stream import Block, BlockStream, Passage, Void

__all__ = ["Block", "BlockStream", "Console", "Passage", "Void"]
