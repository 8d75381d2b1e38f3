"""Formats calls and results in few lines: long texts are shortened in the middle (A8). No I/O."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfs.wire import ToolCall
from cfs_agents.base.events import ToolResult
from cfs_agents.tools.commands import COMMAND, exit_status, without_status
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.files import EDIT_FILE, READ_FILE, WRITE_FILE
from cfs_agents.tools.paths import file_path
from cfs_agents.tools.plan import UPDATE_PLAN, lines_of, steps_in

FIRST_LINES, LAST_LINES = 10, 5
LONGEST_LINE = 300
MOST_PATHS = 20
_LONGEST_INLINE = 80

_ON_FILES = frozenset({READ_FILE, WRITE_FILE, EDIT_FILE})


@dataclass(frozen=True, slots=True)
class FormattedBlock:
    """A heading and the lines below it."""

    heading: str
    lines: Sequence[str] = ()


def file_of(call: ToolCall) -> str | None:
    """Return the logical path of the file that a call works on; None if there is none."""
    path = call.arguments.get("path")
    if call.name not in _ON_FILES or not isinstance(path, str):
        return None
    try:
        return file_path(path)
    except ToolError:
        return path  # the tool will say what is wrong with it


def format_call(call: ToolCall, operation: int = 0) -> FormattedBlock:
    """Format a call; `operation` numbers the operations on its file."""
    rest = dict(call.arguments)
    heading, lines = call.name, list[str]()
    if (path := file_of(call)) is not None:
        del rest["path"]
        heading += f" {_line(path)} ({ordinal(operation)} operation on this file)"
    if call.name == COMMAND and isinstance(command := rest.get("command"), str):
        del rest["command"]
        lines += [f"$ {line}" for line in shortened(command)]
    if call.name == UPDATE_PLAN and (steps := steps_in(call)):
        del rest["steps"]
        lines += lines_of(steps)
    for name, value in rest.items():
        text = shown_value(value)
        if "\n" in text or len(text) > _LONGEST_INLINE:
            lines += [f"{name}:", *(f"  {line}" for line in shortened(text))]
        elif value is not None:
            heading += f" {name}={json.dumps(value, ensure_ascii=False)}"
    return FormattedBlock(heading, lines)


def format_result(call: ToolCall, result: ToolResult, *, repeated: bool = False) -> FormattedBlock:
    """Format a result; a command's has its exit status, a `repeated` output is not shown again."""
    code = _exit_status(call, result)
    status = ("ok" if result.ok else "failed") if code is None else f"exit status {code}"
    heading = " ".join(filter(None, (call.name, _subject(call)))) + f": {status}, {result.seconds:.2f} s"
    output = output_of(call, result)
    if not output.strip():
        return FormattedBlock(heading)
    if repeated:
        return FormattedBlock(heading, [f"[the same output as before: {counted(len(output.splitlines()), 'line')}]"])
    return FormattedBlock(heading, shortened(output))


def output_of(call: ToolCall, result: ToolResult) -> str:
    """Return the output without a command's status line, which is in the heading already."""
    return result.text if _exit_status(call, result) is None else without_status(result.text)


def went_wrong(call: ToolCall, result: ToolResult) -> bool:
    """Return whether a result is an error, or that of a command with a status other than 0."""
    return not result.ok or bool(_exit_status(call, result))


def _exit_status(call: ToolCall, result: ToolResult) -> int | None:
    """Return the exit status of a command that has ended (0 if its result has none)."""
    return exit_status(call.name, call.arguments, result.text) if result.ok else None


def shortened(text: str) -> list[str]:
    """Split a text into lines; of many only the first and the last remain."""
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        lines = [*lines[:FIRST_LINES], f"[... {left_out:,} lines ...]", *lines[-LAST_LINES:]]
    return [_line(line) for line in lines]


def ordinal(number: int) -> str:
    """Return an ordinal number, such as 1st."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}" + ("th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th"))


def counted(number: int, thing: str) -> str:
    """Return a number with its unit, such as 2 lines."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(paths: Sequence[str]) -> str:
    """Join the first paths, and say how many more there are."""
    more = f", and {len(paths) - MOST_PATHS:,} more" if len(paths) > MOST_PATHS else ""
    return ", ".join(map(_line, paths[:MOST_PATHS])) + more


def _subject(call: ToolCall) -> str:
    """Return a few words that tell this call from others of its tool."""
    if (path := file_of(call)) is not None:
        return _line(path)
    named = call.arguments.get("command") or call.arguments.get("path")
    if not isinstance(named, str) or not named.strip():
        return ""
    first = named.strip().splitlines()[0]
    return first if first == named.strip() and len(first) <= _LONGEST_INLINE else f"{first[:_LONGEST_INLINE]}..."


def shown_value(value: Any) -> str:
    """Return a value as text, JSON unless it is a text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(line: str) -> str:
    line = line.replace("\n", "␊")
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} [... {len(line) - 2 * half:,} characters ...] {line[-half:]}"
