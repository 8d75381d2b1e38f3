"""The tools of one agent: those for files and commands, its own, and the gate before all of them (A3, A5, B2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cfs_agents.tools import (
    AsyncPersistentShell,
    CallGate,
    CommandTools,
    FileGate,
    FileTools,
    ShellSettings,
    Tool,
)
from cfs_filesystem import FsHandle


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one agent, the shell that some of them use, and the gate that each call passes."""

    tools: Sequence[Tool | Callable[..., object]]
    shell: AsyncPersistentShell | None = None
    gate: CallGate | None = None


def working_tools(
    handle: FsHandle,
    root: Path,
    commands: ShellSettings | None,
    *,
    workspace: Path | None = None,
    file_gate: FileGate | None = None,
    look_alikes: bool = False,
    watched: Callable[[Tool], Tool] = lambda tool: tool,
) -> tuple[list[Tool], AsyncPersistentShell | None]:
    """Return the tools for files and commands, and the shell of the commands; without `commands` there is none.

    `root` is the directory of this machine that is the agent's `/`, and `workspace` the one that is its `/workspace`.
    `watched` wraps each tool that may change files without the file tools.
    """
    tools = FileTools(handle, file_gate, look_alikes=look_alikes).tools()
    if commands is None:
        return tools, None
    shell = AsyncPersistentShell(commands)
    return [*tools, *map(watched, CommandTools(shell, root, handle, workspace=workspace).tools())], shell
