"""The tools of one agent: those for files and commands, its own, and the gate before all of them (A3, A5, B2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfs_agents.base.messages import Language
from cfs_agents.project.instructions import FolderInstructions
from cfs_agents.tools import (
    AsyncPersistentShell,
    CallGate,
    CommandMode,
    CommandTools,
    FileGate,
    FileTools,
    Tool,
    shell_for,
)
from cfs_agents.tools.ignored import IgnoredFiles
from cfs_agents.tools.jobs import Jobs
from cfs_agents.tools.paths import WORKSPACE
from cfs_filesystem import FsHandle

JOBS = "jobs.json"
"""Name of the file with the background jobs of an agent."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one agent, the jobs of its shell, and the gate that each call passes."""

    tools: Sequence[Tool | Callable[..., object]]
    jobs: Jobs | None = None
    gate: CallGate | None = None


def working_tools(
    handle: FsHandle,
    root: Path,
    folders: Mapping[str, Path],
    mode: CommandMode,
    *,
    file_gate: FileGate | None = None,
    ignored: IgnoredFiles | None = None,
    look_alikes: bool = False,
    watched: Callable[[Tool], Tool] = lambda tool: tool,
    jobs_file: Path | None = None,
    language: Language = "en",
    **settings: Any,
) -> tuple[list[Tool], Jobs | None]:
    """Return the tools for files and commands, and the background jobs of the commands, which `mode` may exclude.

    `root` is the directory of this machine that is the agent's `/`, and `folders` are those that commands may use, by
    the names that the agent uses. `ignored` files are neither listed nor searched. `watched` wraps each tool that may
    change files without the file tools. `jobs_file` holds the list of running jobs. `settings` are further ones of the
    shell (see `shell_for`).
    """
    note_of = FolderInstructions(handle, WORKSPACE).note
    tools = FileTools(handle, file_gate, ignored=ignored, note_of=note_of, look_alikes=look_alikes).tools()
    if mode is CommandMode.NONE:
        return tools, None
    shell = AsyncPersistentShell(shell_for(folders, sandbox=mode is CommandMode.BWRAP, **settings))
    commands = CommandTools(shell, root, handle, workspace=folders[WORKSPACE], jobs_file=jobs_file, language=language)
    return [*tools, *map(watched, commands.tools())], commands.jobs
