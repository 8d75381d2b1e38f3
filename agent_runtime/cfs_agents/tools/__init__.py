"""Tools: what an agent can do, described to a model and done for it."""

from cfs_agents.base.events import ToolResult
from cfs_agents.shell import (
    AsyncPersistentShell,
    Limits,
    PersistentShell,
    Sandbox,
    ShellResult,
    ShellSettings,
    Warden,
    sandbox_trouble,
    usual_limits,
)
from cfs_agents.shell.errors import ShellClosed, ShellError, ShellUnavailable
from cfs_agents.tools.commands import (
    Answer,
    Ask,
    CommandMode,
    CommandRequest,
    CommandTools,
    Consent,
    Elsewhere,
    agent_shell,
    command_mode,
    failure_of,
)
from cfs_agents.tools.files import FileTools, PathManager, agent_grants
from cfs_agents.tools.reading import FileGate
from cfs_agents.tools.registry import (
    CALL_ID,
    CutText,
    Registry,
    Tool,
    ToolDefinitionError,
    ToolError,
    ToolOutput,
    Touch,
    tool,
)

__all__ = [
    "CALL_ID",
    "Answer",
    "Ask",
    "AsyncPersistentShell",
    "CommandMode",
    "CommandRequest",
    "CommandTools",
    "Consent",
    "CutText",
    "Elsewhere",
    "FileGate",
    "FileTools",
    "Limits",
    "PathManager",
    "PersistentShell",
    "Registry",
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
