"""One-line reports of finished children, for a long context (B7). No I/O."""

import re
from collections.abc import Callable

from cfs_agents.context import ContextItem, Conversation

WAIT = "sys_wait_agent"
"""The tool whose results bring reports."""

_REPORT = re.compile(r"^\[[A-Za-z0-9_./-]+ [^\]\n]+\]$", re.MULTILINE)
_LONGEST = 120


def digested(context: Conversation, is_report: Callable[[ContextItem], bool], *, keep: int = 2) -> Conversation:
    """Shorten all reports but the newest `keep` to one line. Shortened reports stay unchanged.

    `is_report` detects messages that contain a report.
    """
    reports = [item for item in context if is_report(item) and not item.destroyed]
    old = reports[: max(0, len(reports) - keep)]
    changed = [item.with_content(line) for item in old if (line := one_line(item.message.content)) is not None]
    return context.replacing(changed) if changed else context


def one_line(text: str) -> str | None:
    """Return a report in one line: agent, status, first line of the summary. None if this is not shorter."""
    match = _REPORT.search(text)
    if match is None:
        return None
    summary = next((line.strip() for line in text[match.end() :].splitlines() if line.strip()), "")
    summary = summary if len(summary) <= _LONGEST else f"{summary[:_LONGEST]}..."
    line = f"{match.group()} {summary}"
    return line if len(line) < len(text) else None
