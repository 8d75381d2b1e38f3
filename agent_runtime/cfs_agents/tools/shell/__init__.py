"""A bash that is kept for a whole run: its state, its output to the byte, its end whatever happens."""

from cfs_agents.tools.shell.confinement import Limits, Sandbox, ShellSettings, Warden, sandbox_trouble, usual_limits
from cfs_agents.tools.shell.shell import AsyncPersistentShell, Job, PersistentShell, ShellResult

__all__ = [
    "AsyncPersistentShell",
    "Job",
    "Limits",
    "PersistentShell",
    "Sandbox",
    "ShellResult",
    "ShellSettings",
    "Warden",
    "sandbox_trouble",
    "usual_limits",
]
