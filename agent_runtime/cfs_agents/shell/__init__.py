"""Persistent shells: one bash for many commands, with exact output and a guaranteed end of all its processes."""

from cfs_agents.shell.limits import Limits, usual_limits
from cfs_agents.shell.reaper import Reaper
from cfs_agents.shell.results import Job, ShellResult
from cfs_agents.shell.sandbox import sandbox_trouble
from cfs_agents.shell.settings import Sandbox, ShellSettings
from cfs_agents.shell.shell import AsyncPersistentShell, PersistentShell

__all__ = [
    "AsyncPersistentShell",
    "Job",
    "Limits",
    "PersistentShell",
    "Reaper",
    "Sandbox",
    "ShellResult",
    "ShellSettings",
    "sandbox_trouble",
    "usual_limits",
]
