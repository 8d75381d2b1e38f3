"""The tool that runs commands in an agent's shell, and the consent that it needs (A3, A5).

No command runs without consent: `CommandMode.NONE`, the default of every agent, leaves the tool out.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cfs_agents.tools.files import STORAGE, WORKSPACE, PathManager, directory_path
from cfs_agents.tools.registry import CALL_ID, Tool, ToolError, ToolOutput, in_thread, tool
from cfs_agents.tools.shell.confinement import Sandbox, ShellSettings, usual_limits
from cfs_agents.tools.shell.shell import AsyncPersistentShell, ShellResult
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
"""How outputs of programs end that asked for input and found the end of it."""

_STATUS = re.compile(r"\[exit status (-?\d+), [0-9.]+ s\]\s*\Z")
_DESCRIPTION = (
    "Run a command in bash. Directory, variables, functions and options stay from call to call. It begins in the"
    " workspace; use relative paths. There is no terminal and no input: use options such as -y. Long output is"
    " shortened, and whole in a file."
)


class CommandMode(StrEnum):
    """Whether an agent may run commands, and how. The default is `NONE` everywhere.

    `NONE`: there is no tool for it. `ASK`: as you, each after a person has agreed to it. `BWRAP`: unasked, confined by
    bubblewrap. `HOST`: unasked, as you.
    """

    NONE = "none"
    ASK = "ask"
    BWRAP = "bwrap"
    HOST = "host"


class Answer(StrEnum):
    """What a person says to a command. `ALWAYS` holds for an equal request, for as long as the agent is open."""

    YES = "yes"
    NO = "no"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command that an agent wants to run, exactly as it would run, and the directory in which it would."""

    command: str
    directory: str
    background: bool = False


Ask = Callable[[str, CommandRequest], Awaitable[Answer]]
"""Asks a person; gets the name of the agent. Whatever it returns but `YES` and `ALWAYS` is a no."""


def command_mode(mode: CommandMode, ask: Ask | None) -> CommandMode:
    """Check the two settings of an agent that belong together; raises `ValueError`."""
    mode = CommandMode(mode)
    if mode is CommandMode.ASK and ask is None:
        raise ValueError("commands='ask' needs `ask`, a coroutine function that asks a person")
    return mode


class Consent:
    """Asks a person before each command, but for those that always may run; one for all agents of a tree.

    One question at a time: further ones wait.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._always: set[CommandRequest] = set()
        self._turn = asyncio.Lock()

    async def require(self, agent: str, request: CommandRequest) -> None:
        """Return if the command may run; raises `ToolError` if not."""
        async with self._turn:
            if request in self._always:
                return
            answer = await self._ask(agent, request)
        if answer == Answer.ALWAYS:
            self._always.add(request)
        elif answer != Answer.YES:
            raise ToolError(
                "the user did not allow this command, and it was not run. Do not try it again: do without it, or say"
                " in your answer what you would need it for"
            )


Require = Callable[[CommandRequest], Awaitable[None]]
"""Raises `ToolError` for a command that may not run; `Consent.require` of one agent."""


class CommandTools:
    """The tool `execute_command` of one agent: its shell, and its directory of the machine, which is `/` to it.

    `handle` judges the directories that the model names. The shell itself is held by nothing but its settings
    (user, limits, sandbox). `workspace` is the directory of the machine that is /workspace, if it is called otherwise.
    `require` is awaited before each command; without it none needs consent.
    """

    def __init__(
        self,
        shell: AsyncPersistentShell,
        root: Path,
        handle: FsHandle,
        *,
        workspace: Path | None = None,
        require: Require | None = None,
    ) -> None:
        self._shell = shell
        self._paths = PathManager(root, workspace)
        self._handle = handle
        self._require = require

    def tools(self) -> list[Tool]:
        """Return it."""
        # The shell keeps the time, and its result tells what was written until then; the tool's own is for defects.
        # A person who is asked may take any time.
        timeout = LONGEST_TIMEOUT + 60 if self._require is None else math.inf
        return [tool(_DESCRIPTION, name=COMMAND, timeout=timeout)(self.execute_command)]

    async def execute_command(
        self,
        command: Annotated[str, "command or script"],
        working_dir: Annotated[str | None, "for this command only"] = None,
        timeout: Annotated[float | None, Field(gt=0, le=LONGEST_TIMEOUT, description="seconds")] = None,
        background: Annotated[bool, "do not wait; output goes to a file"] = False,
    ) -> ToolOutput:
        """Run a command and return `stdout`, `stderr`, `exit_code` and how it ended.

        A Python caller gets standard output and standard error apart. A model reads both together, in the order in
        which they were written. In the background the values are `process` and `log`.
        """
        if "\0" in command:
            raise ToolError("a command cannot hold NUL")
        directory = None if working_dir is None else await in_thread(lambda: self._directory(working_dir))
        if self._require is not None:
            place = str(directory or self._shell.directory)
            await self._require(CommandRequest(command, place, background))
        if background:
            job = await self._shell.background(command, directory=directory)
            place = self._paths.agent_path(job.log)
            text = f"[process {job.pid} runs in the background and writes to {place}; to end it: kill -- -{job.pid}]"
            return ToolOutput({"process": job.pid, "log": place}, text)
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
        return ToolOutput(values, self._text(command, result))

    def _directory(self, path: str) -> Path:
        place = directory_path(path)
        try:
            if not self._handle.is_directory(place):
                raise ToolError(f"there is no directory {place!r}")
        except FileSystemError as error:
            raise ToolError(str(error)) from None
        return self._paths.place_of(place)

    def _text(self, command: str, result: ShellResult) -> str:
        """Return what the model reads: the output, and notes in brackets."""
        output = result.output + (result.errors or "")
        notes = self._notes(command, result)
        if result.status or notes or not output:
            notes.append(f"exit status {result.status}, {result.seconds:.2f} s")
        break_line = "\n" if output and notes and not output.endswith("\n") else ""
        return output + break_line + "".join(f"[{note}]\n" for note in notes).removesuffix("\n")

    def _notes(self, command: str, result: ShellResult) -> list[str]:
        """Return what the model cannot see from the output."""
        record = self._paths.agent_path(result.record) if result.record else "no file, as none could be written"
        inside = self._shell.settings.inside(self._paths.workspace)
        misnamed = result.status != 0 and inside != WORKSPACE and _NAMES_WORKSPACE.search(command) is not None
        waited = "it waited for input, which nobody can give, and was interrupted: use options such as -y"
        asked = result.asked is None and result.status != 0 and _ASKED.search(result.output[-_END:]) is not None
        goes_on = result.still_running and not result.left_out
        told = [
            (result.fresh, "the shell had ended before; this is a fresh one, without what was set in it"),
            (result.binary, "bytes that are no text are shown as \ufffd"),
            (result.left_out, f"the whole output is in {record}"),
            (goes_on, f"a process goes on in the background; this output, and what will come, is in {record}"),
            (result.asked is not None, f"{waited}; it asked: {result.asked}" if result.asked else waited),
            (asked, "it seems to have asked for input, and there is none: use options such as -y"),
            (result.timed_out, "its time was over: it was interrupted as by Ctrl-C"),
            (result.ended, f"the shell has ended: {result.ended}; the next command gets a fresh one"),
            (misnamed, f"in the shell {WORKSPACE} is {inside}: use relative paths"),
        ]
        return [note for holds, note in told if holds]


def exit_status(name: str, arguments: Mapping[str, Any], text: str) -> int | None:
    """Read the status of a command that has ended from the result of its call; None for what is no such call."""
    if name != COMMAND or arguments.get("background"):
        return None
    found = _STATUS.search(text)
    return int(found[1]) if found else 0


def failure_of(name: str, arguments: Mapping[str, Any], text: str, *, ok: bool) -> str:
    """Say what a call failed with, by its result; nothing where it did not.

    A call fails when its tool returns an error, and when its command ends with a status other than 0.
    """
    if not ok:
        return f"{name}: {next(iter(text.splitlines()), '')[:_LONGEST_REASON]}"
    status = exit_status(name, arguments, text)
    return f"{name}: exit status {status}" if status else ""


def without_status(text: str) -> str:
    """Take the line with the status off the result of a command."""
    return _STATUS.sub("", text)


def agent_shell(root: Path, *, sandbox: bool = False, network: bool = False, **settings: Any) -> ShellSettings:
    """Set up a shell for the directory of an agent; more `settings` are those of `ShellSettings`.

    Its processes are bounded (`usual_limits`, unless `limits` says otherwise). In a `sandbox` commands see workspace
    and storage, under the names that the file tools use, and nothing else of the agent (not its journal, not its logs)
    and of the machine but its programs.
    """
    workspace, storage = root / WORKSPACE[1:], root / STORAGE[1:]
    box = None
    if sandbox:
        for directory in (workspace, storage):
            directory.mkdir(parents=True, exist_ok=True)
        box = Sandbox(writable=(workspace, storage), places={WORKSPACE: workspace, STORAGE: storage}, network=network)
    return ShellSettings(**{"directory": workspace, "sandbox": box, "limits": usual_limits()} | settings)
