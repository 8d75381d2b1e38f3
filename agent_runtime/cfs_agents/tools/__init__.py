"""Tools: what an agent can do, described to a model and done for it."""

from cfs_agents.tools.errors import ShellClosed, ShellError, ShellUnavailable, ToolDefinitionError, ToolError
from cfs_agents.tools.registry import Registry
from cfs_agents.tools.results import ToolResult
from cfs_agents.tools.tool import Tool, tool

__all__ = [
    "Registry",
    "ShellClosed",
    "ShellError",
    "ShellUnavailable",
    "Tool",
    "ToolDefinitionError",
    "ToolError",
    "ToolResult",
    "tool",
]
