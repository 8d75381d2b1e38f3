"""The topic of a session: the first line that its user has written."""

import re
from collections.abc import Iterable

from cfs.wire import Message

_TOPIC_CHARACTERS = 80


_INSERTED = re.compile(
    r"\s*+(?:"
    r"<(?P<tag>(?=[A-Za-z0-9]+[_-])[\w-]{1,64}|INSTRUCTIONS)(?:\s[^<>]*+)?>.*?</(?P=tag)>"
    r"|# AGENTS\.md instructions[^\n]*"
    r")",
    re.DOTALL,
)
"""What coding agents put before the words of their users, or into messages of their own.

These are blocks whose tags have a `_` or a `-`, as no tag of HTML has (`<system-reminder>` of Claude Code, Codex's
`<environment_context>` and `<user_instructions>`), and the instructions of a project, for which Codex writes
`# AGENTS.md instructions for PATH` and `<INSTRUCTIONS>`.
"""


_SURROUNDINGS = (
    "This is the Gemini CLI. We are setting up the context",
    "This is the Qwen Code. We are setting up the context",
    "Here are some READ ONLY files, provided for your reference",  # aider, as the next ones
    "Here are summaries of some files present in my git repository",
    "I am not sharing any files that you can edit yet",
    "I have *added these files to the chat*",
)
"""How messages begin in which coding agents describe where they are."""


def topic_of(messages: Iterable[Message]) -> str:
    """Return the first line that a user has written, shortened; empty without one."""
    lines = (_first_line(message.content) for message in messages if message.role == "user")
    line = next(filter(None, lines), "")
    return line if len(line) <= _TOPIC_CHARACTERS else f"{line[: _TOPIC_CHARACTERS - 1].rstrip()}…"


def _first_line(content: str) -> str:
    """Return the first line of a message after what its program has put before it."""
    start = 0
    while match := _INSERTED.match(content, start):
        start = match.end()
    if content.startswith(_SURROUNDINGS, start):
        return ""
    return " ".join(content[start:].lstrip().partition("\n")[0].split())
