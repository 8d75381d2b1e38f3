"""Patterns that a person can choose to remember instead of one exact call. They allow what their words say (A11)."""

import re
from collections.abc import Callable

from cfs_agents.guards.rules.calls import CallKind, GatedCall, Scope
from cfs_agents.guards.rules.runners import runs_anything
from cfs_agents.guards.rules.script import analyse
from cfs_agents.guards.rules.words import SimpleCommand
from cfs_agents.tools.files import READ_FILE

_SUBCOMMANDS = frozenset(
    {"git", "cargo", "go", "pip", "pip3", "apt", "brew", "systemctl", "gh", "helm", "terraform", "dotnet", "rustup"}
)
"""Programs whose first word says what they do: a pattern includes it."""

_RUNS_CODE = frozenset(
    {("cargo", "run"), ("go", "run"), ("go", "generate"), ("git", "bisect"), ("git", "submodule"), ("gh", "alias")}
    | {("dotnet", "run"), ("dotnet", "exec"), ("git", "config"), ("git", "filter-branch"), ("git", "rebase")}
)
_MOST_PATTERNS = 4
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_READS = frozenset(
    {"cat", "cut", "diff", "du", "file", "grep", "head", "ls", "ruff", "mypy", "stat", "tail", "tree", "uniq", "wc"}
    | {"echo", "date", "df", "basename", "dirname", "realpath", "readlink", "md5sum", "sha256sum", "comm", "tr", "nl"}
    | {"jq", "mkdir", "touch", "pytest", "which", "id", "uname", "whoami", "seq", "cmp", "strings", "hexdump", "xxd"}
)
"""Programs that do one thing, whatever their arguments are."""


def suggestions(call: GatedCall, scope: Scope, is_allowed: Callable[[SimpleCommand], bool]) -> tuple[str, ...]:
    """Return patterns that cover the call together; none where one would allow more than its words say.

    Commands for which `is_allowed` is true need none.
    """
    if call.kind is CallKind.COMMAND:
        return _of_script(call.subject, is_allowed)
    pattern = _of_call(call, scope)
    return (pattern,) if pattern else ()


def _of_call(call: GatedCall, scope: Scope) -> str:
    if call.kind is CallKind.MCP:
        return call.text if re.fullmatch(r"[^/()*\s]+/[^()*\s]+", call.subject) else ""
    if call.kind in (CallKind.READ, CallKind.WRITE):
        target = scope.file(call.subject)
        tool = READ_FILE if call.kind is CallKind.READ else call.tool
        folder = target.real.rpartition("/")[0]
        exact = re.fullmatch(r"[\w./ -]+", target.real) is not None and target.written == target.real
        if not exact or not {".cfs", ".git"}.isdisjoint(target.real.split("/")):
            return ""
        return f"{tool}({folder}/**)" if folder and target.inside else f"{tool}({target.real})"
    return "" if re.search(r"[()*]", call.subject) else call.text


def _of_script(text: str, is_allowed: Callable[[SimpleCommand], bool]) -> tuple[str, ...]:
    """Return a pattern for each simple command of a script that is not allowed yet."""
    script = analyse(text)
    commands = [command for command in script.commands if not command.free and not is_allowed(command)]
    patterns = tuple(dict.fromkeys(map(_of_command, commands)))
    return () if script.doubts or script.hidden or "" in patterns or len(patterns) > _MOST_PATTERNS else patterns


def _of_command(command: SimpleCommand) -> str:
    """Return a pattern for a command; empty for programs that run others, and for those that rules do not know."""
    words = [word.text for word in command.words]
    if command.spelled or command.unread or runs_anything(words[0]):
        return ""
    if not command.words[0].literal or not _WORD.fullmatch(words[0]):
        return ""
    if words[0] in _SUBCOMMANDS:
        if len(words) < 2 or not command.words[1].literal or not _WORD.fullmatch(words[1]):
            return ""
        return "" if (words[0], words[1]) in _RUNS_CODE else f"execute_command({words[0]} {words[1]}:*)"
    return f"execute_command({words[0]}:*)" if words[0] in _READS else ""
