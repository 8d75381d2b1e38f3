"""The tool `execute_command`, which runs commands in an agent's shell (A5).

No command runs without consent: with `CommandMode.NONE`, the default of every agent, the tool does not exist.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cfs_agents.base.messages import Language
from cfs_agents.base.threads import in_thread
from cfs_agents.shell.limits import usual_limits
from cfs_agents.shell.results import ShellResult
from cfs_agents.shell.settings import Sandbox, ShellSettings
from cfs_agents.shell.shell import AsyncPersistentShell
from cfs_agents.tools.consent import CommandRequest
from cfs_agents.tools.definition import Tool, tool
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.jobs import Jobs
from cfs_agents.tools.paths import STORAGE, WORKSPACE, PathManager, directory_path
from cfs_agents.tools.registry import CALL_ID
from cfs_agents.tools.results import CutText, ToolOutput
from cfs_filesystem import FileSystemError, FsHandle

COMMAND = "execute_command"
LONGEST_TIMEOUT = 3600.0
_LONGEST_REASON = 200

_NAMES_WORKSPACE = re.compile(rf"(?<![\w./-]){WORKSPACE}\b")

_END = 2_000
_ASKED = re.compile(
    r"[\[(](?:y(?:es)?/n(?:o)?)(?:/\[?\w+\]?)*[\])]|EOF when reading a line|EOFError"
    r"|\b(?:password|passphrase)[^\n:]{0,80}: ?\Z|\? ?\Z|a terminal is required|(?:not|isn't) a (?:tty|terminal)\b",
    re.IGNORECASE,
)
"""Ends of outputs of programs that asked for input and found none."""

_STATUS = re.compile(r"\[exit status (-?\d+), [0-9.]+ s\]\s*\Z")
_DESCRIPTION = (
    "Run a command in bash. Directory, variables, functions and options stay from call to call. It begins in the"
    " workspace; use relative paths. There is no terminal and no input: use options such as -y. Long output is"
    " shortened, and whole in a file."
)


class CommandTools:
    """The tools `execute_command` and `job` of one agent.

    - `root` is the directory of this machine that is the agent's `/`.
    - `shell` runs the commands. Only its settings (user, limits, sandbox) confine them.
    - `handle` checks the directories that the model names.
    - `workspace` is the directory of this machine that is `/workspace` (default: that folder of `root`).
    - `jobs_file` holds the list of running jobs (see `Jobs`).
    """

    def __init__(
        self,
        shell: AsyncPersistentShell,
        root: Path,
        handle: FsHandle,
        *,
        workspace: Path | None = None,
        jobs_file: Path | None = None,
        language: Language = "en",
    ) -> None:
        self._shell = shell
        self.jobs = Jobs(shell, jobs_file, language)
        self._paths = PathManager(root, workspace, folder="")
        self._handle = handle

    def tools(self) -> list[Tool]:
        """Return the tools."""
        # The shell enforces the command's time limit and returns the output so far. The tool's own limit is for
        # defects.
        timeout = LONGEST_TIMEOUT + 60
        execute = tool(_DESCRIPTION, name=COMMAND, timeout=timeout, command_of=self.request)(self.execute_command)
        return [execute, self.jobs.tool()]

    async def request(
        self, command: str, working_dir: str | None = None, background: bool = False, **_: object
    ) -> CommandRequest:
        """Return the command that a call with these arguments runs, and its directory; raises `ToolError`."""
        directory = await self._checked(command, working_dir)
        return CommandRequest(command, str(directory or self._shell.directory), background)

    async def execute_command(
        self,
        command: Annotated[str, "command or script"],
        working_dir: Annotated[str | None, "for this command only"] = None,
        timeout: Annotated[float | None, Field(gt=0, le=LONGEST_TIMEOUT, description="seconds")] = None,
        background: Annotated[bool, "do not wait; output goes to a file"] = False,
    ) -> ToolOutput:
        """Run a command and return `stdout`, `stderr`, `exit_code`, `seconds`, `timed_out` and `asked`.

        A Python caller gets standard output and standard error separately. The model reads both in the order in which
        they were written. For a background job the values are `job`, `process` and `log`.
        """
        directory = await self._checked(command, working_dir)
        if background:
            entry = await self.jobs.start(command, directory, self._paths.agent_path)
            pid = entry.job.pid
            text = f"[job {entry.id}: process {pid} runs in the background and writes to {entry.path};"
            values = {"job": entry.id, "process": pid, "log": entry.path}
            return ToolOutput(values, f"{text} to end it: kill -- -{pid}]")
        merge = bool(CALL_ID.get())
        result = await self._shell.run(command, timeout=timeout, directory=directory, merge=merge)
        values = {
            "stdout": result.output,
            "stderr": result.errors or "",
            "exit_code": result.status,
            "seconds": result.seconds,
            "timed_out": result.timed_out,
            "asked": result.asked,
        }
        text = self._text(command, result)
        return ToolOutput(values, CutText(text) if result.left_out else text)

    async def _checked(self, command: str, working_dir: str | None) -> Path | None:
        """Return the directory of a command, None for that of the shell; raises `ToolError` if it cannot run there."""
        if "\0" in command:
            raise ToolError("a command cannot hold NUL")
        return None if working_dir is None else await in_thread(lambda: self._directory(working_dir))

    def _directory(self, path: str) -> Path:
        logical = directory_path(path)
        try:
            if not self._handle.is_directory(logical):
                raise ToolError(f"there is no directory {logical!r}")
        except FileSystemError as error:
            raise ToolError(str(error)) from None
        return self._paths.place_of(logical)

    def _text(self, command: str, result: ShellResult) -> str:
        """Return the text for the model: the output, and notes in brackets."""
        output = result.output + (result.errors or "")
        notes = self._notes(command, result)
        if result.status or notes or not output:
            notes.append(f"exit status {result.status}, {result.seconds:.2f} s")
        break_line = "\n" if output and notes and not output.endswith("\n") else ""
        return output + break_line + "".join(f"[{note}]\n" for note in notes).removesuffix("\n")

    def _notes(self, command: str, result: ShellResult) -> list[str]:
        """Return notes on facts that the output does not show."""
        record = self._paths.agent_path(result.record) if result.record else "no file, as none could be written"
        inside = self._shell.settings.inside(self._paths.workspace)
        misnamed = result.status != 0 and inside != WORKSPACE and _NAMES_WORKSPACE.search(command) is not None
        waited = "it waited for input, which nobody can give, and was interrupted: use options such as -y"
        prompted = result.asked is None and result.status != 0 and _ASKED.search(result.output[-_END:]) is not None
        goes_on = result.still_running and not result.left_out
        candidates = [
            (result.fresh, "the shell had ended before; this is a fresh one, without what was set in it"),
            (result.binary, "bytes that are no text are shown as \ufffd"),
            (result.left_out and result.record, f"read what is left out with start_line={_left_out_from(result)}"),
            (result.left_out, f"the whole output is in {record}"),
            (goes_on, f"a process goes on in the background; this output, and what will come, is in {record}"),
            (result.asked is not None, f"{waited}; it asked: {result.asked}" if result.asked else waited),
            (prompted, "it seems to have asked for input, and there is none: use options such as -y"),
            (result.timed_out, "its time was over: it was interrupted as by Ctrl-C"),
            (result.ended, f"the shell has ended: {result.ended}; the next command gets a fresh one"),
            (misnamed, f"in the shell {WORKSPACE} is {inside}: use relative paths"),
        ]
        return [note for holds, note in candidates if holds]


def _left_out_from(result: ShellResult) -> int:
    """Return the line of the whole output from which on it is not shown, or the last one that is."""
    return max(1, result.output.partition(f"[... {result.left_out:,} bytes left out ...]")[0].count("\n"))


def exit_status(name: str, arguments: Mapping[str, Any], text: str) -> int | None:
    """Return the exit status of a command from the result of its call; None for any other call or a background job."""
    if name != COMMAND or arguments.get("background"):
        return None
    match = _STATUS.search(text)
    return int(match[1]) if match else 0


def failure_of(name: str, arguments: Mapping[str, Any], text: str, *, ok: bool) -> str:
    """Return the reason why a call failed, from its result; empty if it succeeded.

    A call fails if its tool returns an error, or if its command ends with a status other than 0.
    """
    if not ok:
        return f"{name}: {next(iter(text.splitlines()), '')[:_LONGEST_REASON]}"
    status = exit_status(name, arguments, text)
    return f"{name}: exit status {status}" if status else ""


def without_status(text: str) -> str:
    """Return the result of a command without its status line."""
    return _STATUS.sub("", text)


def shell_for(folders: Mapping[str, Path], *, sandbox: bool, network: bool = False, **settings: Any) -> ShellSettings:
    """Return the settings of a shell for an agent; `settings` are further ones of `ShellSettings`.

    `folders` are the directories of this machine by the names that the file tools use; commands begin in the workspace.
    The default limits are `usual_limits`. In a `sandbox` commands see these folders under those names, and of the rest
    of the machine the programs only.
    """
    box = Sandbox(writable=tuple(folders.values()), places=folders, network=network) if sandbox else None
    return ShellSettings(**{"directory": folders[WORKSPACE], "sandbox": box, "limits": usual_limits()} | settings)


def home_of(*, sandbox: bool) -> Path:
    """Return the HOME of commands that work on a user's own folder, where they must not leave files of programs.

    In a `sandbox` there is no home but `/tmp`. Outside they are the user's own commands.
    """
    return Path("/tmp") if sandbox else Path.home()  # noqa: S108 - the sandbox's


def agent_shell(root: Path, *, sandbox: bool = False, network: bool = False, **settings: Any) -> ShellSettings:
    """Return the settings of a shell for an agent's directory (see `shell_for`).

    In a `sandbox` commands see the workspace and the storage. They do not see the agent's other files, such as journal
    and logs.
    """
    folders = {logical: root / logical[1:] for logical in (WORKSPACE, STORAGE)}
    if sandbox:
        for directory in folders.values():
            directory.mkdir(parents=True, exist_ok=True)
    return shell_for(folders, sandbox=sandbox, network=network, **settings)
