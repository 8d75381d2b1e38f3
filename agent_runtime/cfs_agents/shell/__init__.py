"""Persistent shells: one bash for many commands, with exact output and a guaranteed end of all its processes."""

from cfs_agents.shell.confinement import Limits, Sandbox, ShellSettings, Warden, sandbox_trouble, usual_limits
from cfs_agents.shell.shell import AsyncPersistentShell, Job, PersistentShell, ShellResult

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
