"""A bash that is kept for a whole run: its state, its output to the byte, its end whatever happens."""

from cfs_agents.tools.shell.async_shell import AsyncShell
from cfs_agents.tools.shell.limits import usual_limits
from cfs_agents.tools.shell.results import Job, ShellResult
from cfs_agents.tools.shell.sandbox import sandbox_trouble
from cfs_agents.tools.shell.settings import Limits, Sandbox, ShellSettings
from cfs_agents.tools.shell.shell import Shell
from cfs_agents.tools.shell.warden import Warden

__all__ = [
    "AsyncShell",
    "Job",
    "Limits",
    "Sandbox",
    "Shell",
    "ShellResult",
    "ShellSettings",
    "Warden",
    "sandbox_trouble",
    "usual_limits",
]
