"""Tools: what an agent can do, described to a model and done for it."""

from cfs_agents.tools.commands import (
    Answer,
    Ask,
    CommandMode,
    CommandRequest,
    CommandTools,
    Consent,
    agent_shell,
    command_mode,
    failure_of,
)
from cfs_agents.tools.errors import ShellClosed, ShellError, ShellUnavailable, ToolDefinitionError, ToolError
from cfs_agents.tools.files import FileGate, FileTools
from cfs_agents.tools.paths import agent_grants
from cfs_agents.tools.registry import CALL_ID, Registry
from cfs_agents.tools.results import ToolResult
from cfs_agents.tools.shell import (
    AsyncShell,
    Limits,
    Sandbox,
    Shell,
    ShellResult,
    ShellSettings,
    Warden,
    sandbox_trouble,
    usual_limits,
)
from cfs_agents.tools.tool import Tool, Touch, tool

__all__ = [
    "CALL_ID",
    "Answer",
    "Ask",
    "AsyncShell",
    "CommandMode",
    "CommandRequest",
    "CommandTools",
    "Consent",
    "FileGate",
    "FileTools",
    "Limits",
    "Registry",
    "Sandbox",
    "Shell",
    "ShellClosed",
    "ShellError",
    "ShellResult",
    "ShellSettings",
    "ShellUnavailable",
    "Tool",
    "ToolDefinitionError",
    "ToolError",
    "ToolResult",
    "Touch",
    "Warden",
    "agent_grants",
    "agent_shell",
    "command_mode",
    "failure_of",
    "sandbox_trouble",
    "tool",
    "usual_limits",
]
