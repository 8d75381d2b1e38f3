"""A bash that is kept for a whole run: its state, its output to the byte, its end whatever happens."""

from cfs_agents.tools.shell.confinement import Limits, Sandbox, ShellSettings, Warden, sandbox_trouble, usual_limits
from cfs_agents.tools.shell.shell import AsyncShell, Job, Shell, ShellResult

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
