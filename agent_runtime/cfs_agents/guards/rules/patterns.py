"""Patterns of rules, such as `execute_command(git status:*)`: what they cover. No I/O (A11)."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from cfs_agents.guards.rules.calls import FAMILIES, CallKind, FileTarget, GatedCall, kind_of
from cfs_agents.guards.rules.words import SimpleCommand, Word

_FORM = re.compile(r"\s*(\*|[A-Za-z_][A-Za-z0-9_.-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_SERVER = re.compile(r"[^/()]+(?:/[^()]+)?")
_ANY = ("", "*", ":*")
_FOREIGN = {
    "bash": "execute_command",
    "shell": "execute_command",
    "read": "read_file",
    "edit": "edit_file",
    "write": "write_file",
    "task": "spawn_agent",
}
_LONG_FLAGS = {"--recursive": "r", "--force": "f", "--interactive": "i", "--dir": "d"}
"""What `rm` and its like call the letters of `rm -rf`."""


class Coverage(Enum):
    """Whether a restricting pattern covers a command. `MAYBE`: a value that is known only when it runs decides."""

    NO = 0
    MAYBE = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of a rule. `tool` is a name or `*`; `words` is the command's form, `more` whether words may follow."""

    text: str
    tool: str
    argument: str
    words: tuple[str, ...] = ()
    more: bool = True

    @classmethod
    def parse(cls, text: str) -> "Pattern":
        """Parse a pattern; raises `ValueError` with what to do."""
        form = _FORM.fullmatch(text)
        if form is None:
            raise ValueError("write it as TOOL or TOOL(PATTERN), such as execute_command(git status:*)")
        tool, argument = form[1], (form[2] or "").strip()
        if (name := _FOREIGN.get(tool.lower())) is not None and tool[0].isupper():
            raise ValueError(f"there is no tool {tool}: write {name}")
        if tool == "*" and argument not in _ANY:
            raise ValueError("* stands for every tool, and takes no pattern in parentheses")
        kind = kind_of(tool)
        if kind is CallKind.COMMAND:
            return cls(text, tool, argument, *_command_form(argument))
        if kind is CallKind.MCP and argument not in _ANY and _SERVER.fullmatch(argument) is None:
            raise ValueError("write mcp(SERVER/TOOL), mcp(SERVER/*) or mcp(SERVER)")
        if kind in (CallKind.READ, CallKind.WRITE) and argument.startswith(("./", "~")):
            raise ValueError("write paths relative to the workspace, such as src/**, or absolute ones")
        if kind in (CallKind.READ, CallKind.WRITE) and ".." in argument.split("/"):
            raise ValueError("a pattern has no `..`: write the path that is meant")
        return cls(text, tool, argument)

    def names(self, tool: str, kind: CallKind) -> bool:
        """Return whether it is a pattern for a tool."""
        return self.tool in ("*", tool) or FAMILIES.get(self.tool) is kind

    @property
    def any(self) -> bool:
        """Whether it covers every call of its tool."""
        return self.argument in _ANY

    def covers_text(self, call: GatedCall) -> bool:
        """Return whether it covers a call that is neither of a file nor of a command."""
        if not self.names(call.tool, call.kind):
            return False
        if self.any:
            return True
        argument = f"{self.argument}/*" if call.kind is CallKind.MCP and "/" not in self.argument else self.argument
        return _glob(argument).fullmatch(call.subject) is not None

    def covers_path(self, path: str) -> bool:
        """Return whether it covers a path, which is relative to the workspace or absolute."""
        return self.any or path_glob(self.argument).fullmatch(path) is not None

    def allows_file(self, target: FileTarget) -> bool:
        """Return whether it allows a file: it covers the path as written and the one where links lead."""
        if self.any:
            return target.inside
        return all(map(self.covers_path, target.names))

    def restricts_file(self, target: FileTarget) -> bool:
        """Return whether it covers a file, by either path."""
        return any(map(self.covers_path, target.names))

    def allows_command(self, command: SimpleCommand) -> bool:
        """Return whether it allows a simple command: its fixed words are exactly those of the pattern."""
        words = command.words
        if len(words) < len(self.words) or (len(words) > len(self.words) and not self.more):
            return False
        if self.words and self.words[0] != words[0].text and "*" not in self.words[0]:
            return False
        for form, word in zip(self.words, words, strict=False):
            if not word.literal or not _matches(form, word.text):
                return False
        return command.spelled.issubset(self.words)

    def restricts_command(self, command: SimpleCommand) -> Coverage:
        """Return whether it covers a simple command, also with options before, between or in another form."""
        if not self.words:
            return Coverage.YES
        words = command.words
        if not words[0].literal:
            return Coverage.MAYBE
        name = words[0].text
        if not _matches(self.words[0], name) and not _matches(self.words[0], name.rpartition("/")[2]):
            return Coverage.NO
        plain = [word for word in self.words[1:] if not word.startswith("-")]
        flags = [word for word in self.words[1:] if word.startswith("-")]
        covered = _follows(plain, words[1:], more=self.more)
        return (
            covered if covered is Coverage.NO else min(covered, _has(flags, words[1:]), key=lambda match: match.value)
        )


def _command_form(argument: str) -> tuple[tuple[str, ...], bool]:
    if argument in _ANY:
        return (), True
    more = argument.endswith(":*")
    try:
        words = shlex.split(argument.removesuffix(":*"))
    except ValueError:
        raise ValueError("a quotation mark is not closed") from None
    if not more and len(words) > 1 and words[-1] == "*":
        words, more = words[:-1], True
    if not words:
        raise ValueError("it names no command")
    if any(word in ("|", "||", "&&", ";", "&") for word in words):
        raise ValueError("write one command: each part of a && b | c is judged on its own")
    return tuple(words), more


def _follows(plain: Sequence[str], words: Sequence[Word], *, more: bool) -> Coverage:
    """Return whether the words of a pattern come in order. Options, and a value behind each, may stand between."""
    texts = [word.text for word in words if word.literal]
    if len(texts) == len(words):  # most commands have none of the words
        for form in plain:
            if form not in texts and "*" not in form:
                return Coverage.NO
    states = {(0, False)}
    for word in words:
        if more and any(position == len(plain) for position, _ in states):
            return Coverage.YES
        if not word.literal:
            return Coverage.MAYBE if states else Coverage.NO
        following: set[tuple[int, bool]] = set()
        for position, value in states:
            if word.text.startswith("-"):
                following.add((position, True))
                continue
            if value:
                following.add((position, False))
            if position < len(plain) and _matches(plain[position], word.text):
                following.add((position + 1, False))
        states = following
    return Coverage.YES if any(position == len(plain) for position, _ in states) else Coverage.NO


def _has(flags: Sequence[str], words: Sequence[Word]) -> Coverage:
    """Return whether a command has options, in whatever order, cluster or length."""
    if not flags:
        return Coverage.YES
    letters: set[str] = set()
    options = [word.text.partition("=")[0] for word in words if word.literal and word.text.startswith("-")]
    for option in options:
        if option.startswith("--"):
            letters.update(
                letter for name, letter in _LONG_FLAGS.items() if len(option) > 3 and name.startswith(option)
            )
        else:
            letters.update(option[1:].lower() if option[1:] == "R" else option[1:].replace("R", "r"))
    for flag in flags:
        if flag.startswith("--"):
            present = (
                any(
                    _matches(flag, option) or (len(option) > 3 and option.startswith("--") and flag.startswith(option))
                    for option in options
                )
                or _LONG_FLAGS.get(flag, "-") in letters
            )
        else:
            present = flag in options or letters.issuperset(flag[1:].replace("R", "r"))
        if not present:
            return Coverage.MAYBE if any(not word.literal for word in words) else Coverage.NO
    return Coverage.YES


def _matches(form: str, text: str) -> bool:
    return form == text or ("*" in form and _glob(form).fullmatch(text) is not None)


@cache
def _glob(form: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", form))), re.DOTALL)


@cache
def path_glob(form: str) -> re.Pattern[str]:
    """Return the expression of a pattern of paths: `*` and `?` within a name, `**` for any folders."""
    form = form.removesuffix("/**") + "/**" if form.endswith(("/", "/**")) and form.rstrip("/*") else form
    form = form.replace("//**", "/**")
    result = ""
    for part in re.split(r"(/\*\*$|\*\*/|\*\*|\*|\?)", form):
        result += {"/**": "(?:/.*)?", "**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(
            part, re.escape(part)
        )
    return re.compile(result, re.DOTALL)


def first_match(patterns: Iterable["Pattern"], tool: str, kind: CallKind) -> list["Pattern"]:
    """Return the patterns for a tool."""
    return [pattern for pattern in patterns if pattern.names(tool, kind)]
