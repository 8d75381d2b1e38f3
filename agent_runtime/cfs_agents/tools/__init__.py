"""Tools: what an agent can do, described to a model and done for it."""

from cfs_agents.base.events import ToolResult
from cfs_agents.shell import (
    AsyncPersistentShell,
    Limits,
    PersistentShell,
    Reaper,
    Sandbox,
    ShellResult,
    ShellSettings,
    sandbox_trouble,
    usual_limits,
)
from cfs_agents.shell.errors import ShellClosed, ShellError, ShellUnavailable
from cfs_agents.tools.call_gate import CallGate, PendingCall
from cfs_agents.tools.commands import CommandTools, agent_shell, failure_of, shell_for
from cfs_agents.tools.consent import (
    Answer,
    Ask,
    CommandMode,
    CommandRequest,
    Consent,
    Permission,
    RemoteQuestion,
    command_mode,
)
from cfs_agents.tools.definition import FileAccess, Tool, tool
from cfs_agents.tools.errors import ToolDefinitionError, ToolError
from cfs_agents.tools.files import FileTools
from cfs_agents.tools.gates import FileGate
from cfs_agents.tools.paths import PathManager, agent_grants
from cfs_agents.tools.registry import CALL_ID, Registry
from cfs_agents.tools.results import CutText, ToolOutput

__all__ = [
    "CALL_ID",
    "Answer",
    "Ask",
    "AsyncPersistentShell",
    "CallGate",
    "CommandMode",
    "CommandRequest",
    "CommandTools",
    "Consent",
    "CutText",
    "FileAccess",
    "FileGate",
    "FileTools",
    "Limits",
    "PathManager",
    "PendingCall",
    "Permission",
    "PersistentShell",
    "Reaper",
    "Registry",
    "RemoteQuestion",
    "Sandbox",
    "ShellClosed",
    "ShellError",
    "ShellResult",
    "ShellSettings",
    "ShellUnavailable",
    "Tool",
    "ToolDefinitionError",
    "ToolError",
    "ToolOutput",
    "ToolResult",
    "agent_grants",
    "agent_shell",
    "command_mode",
    "failure_of",
    "sandbox_trouble",
    "shell_for",
    "tool",
    "usual_limits",
]
