"""Calls and results in few lines: what is long is shortened in its middle (A8). Pure: no I/O."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfs.wire import ToolCall
from cfs_agents.tools.commands import COMMAND, exit_status, without_status
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.paths import file_path
from cfs_agents.tools.results import ToolResult

FIRST_LINES, LAST_LINES = 10, 5
LONGEST_LINE = 300
MOST_PATHS = 20
_LONGEST_INLINE = 80

_ON_FILES = frozenset({"read_file", "write_file", "edit_file"})


@dataclass(frozen=True, slots=True)
class Told:
    """A heading, and lines that belong below it."""

    heading: str
    lines: Sequence[str] = ()


def file_of(call: ToolCall) -> str | None:
    """Name the one file that a call is about, always by the same name; None when it is about none."""
    path = call.arguments.get("path")
    if call.name not in _ON_FILES or not isinstance(path, str):
        return None
    try:
        return file_path(path)
    except ToolError:
        return path  # the tool will say what is wrong with it


def told_call(call: ToolCall, operation: int = 0) -> Told:
    """Tell a call, with the number of the operation if it is one on a file."""
    rest = dict(call.arguments)
    heading, lines = call.name, list[str]()
    if (path := file_of(call)) is not None:
        del rest["path"]
        heading += f" {_line(path)} ({ordinal(operation)} operation on this file)"
    if call.name == COMMAND and isinstance(command := rest.get("command"), str):
        del rest["command"]
        lines += [f"$ {line}" for line in shortened(command)]
    for name, value in rest.items():
        text = _value(value)
        if "\n" in text or len(text) > _LONGEST_INLINE:
            lines += [f"{name}:", *(f"  {line}" for line in shortened(text))]
        elif value is not None:
            heading += f" {name}={json.dumps(value, ensure_ascii=False)}"
    return Told(heading, lines)


def told_result(call: ToolCall, result: ToolResult, *, repeated: bool = False) -> Told:
    """Tell a result, of a command with its status; one that is repeated is named only."""
    code = _exit_status(call, result)
    status = ("ok" if result.ok else "failed") if code is None else f"exit status {code}"
    heading = " ".join(filter(None, (call.name, _subject(call)))) + f": {status}, {result.seconds:.2f} s"
    output = output_of(call, result)
    if not output.strip():
        return Told(heading)
    if repeated:
        return Told(heading, [f"[the same output as before: {counted(len(output.splitlines()), 'line')}]"])
    return Told(heading, shortened(output))


def output_of(call: ToolCall, result: ToolResult) -> str:
    """Take the status off a command's result: it stands in the heading, with a time that is never the same."""
    return result.text if _exit_status(call, result) is None else without_status(result.text)


def went_wrong(call: ToolCall, result: ToolResult) -> bool:
    """Whether a result is to be noticed: an error, or a command whose status is not 0."""
    return not result.ok or bool(_exit_status(call, result))


def _exit_status(call: ToolCall, result: ToolResult) -> int | None:
    """Read the status of a command that has ended; one that did not say it ended with 0."""
    return exit_status(call.name, call.arguments, result.text) if result.ok else None


def shortened(text: str) -> list[str]:
    """Split a text into lines, of which the first and the last remain when there are many."""
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        lines = [*lines[:FIRST_LINES], f"[... {left_out:,} lines ...]", *lines[-LAST_LINES:]]
    return [_line(line) for line in lines]


def ordinal(number: int) -> str:
    """Write 1 as 1st."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}" + ("th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th"))


def counted(number: int, thing: str) -> str:
    """Write a number with what is counted."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(paths: Sequence[str]) -> str:
    """Write the first of some paths, and how many more there are."""
    more = f", and {len(paths) - MOST_PATHS:,} more" if len(paths) > MOST_PATHS else ""
    return ", ".join(map(_line, paths[:MOST_PATHS])) + more


def _subject(call: ToolCall) -> str:
    """Say in a few words which of several calls of a tool it was."""
    if (path := file_of(call)) is not None:
        return _line(path)
    named = call.arguments.get("command") or call.arguments.get("path")
    if not isinstance(named, str) or not named.strip():
        return ""
    first = named.strip().splitlines()[0]
    return first if first == named.strip() and len(first) <= _LONGEST_INLINE else f"{first[:_LONGEST_INLINE]}..."


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(line: str) -> str:
    line = line.replace("\n", "␊")
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} [... {len(line) - 2 * half:,} characters ...] {line[-half:]}"
