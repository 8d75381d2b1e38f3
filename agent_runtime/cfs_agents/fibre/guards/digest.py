"""Finished children in one line each, where a parent's context has become long (B7). Pure: no I/O."""

import re
from collections.abc import Callable

from cfs_agents.context import Context, ContextItem

_REPORT = re.compile(r"^\[[A-Za-z0-9_./-]+ [^\]\n]+\]$", re.MULTILINE)
_LONGEST = 120


def digested(context: Context, is_report: Callable[[ContextItem], bool], *, keep: int = 2) -> Context:
    """Shorten all reports but the newest `keep` to a line; what was shortened stays as it is.

    `is_report` knows the messages that brought one.
    """
    reports = [item for item in context if is_report(item) and not item.destroyed]
    old = reports[: max(0, len(reports) - keep)]
    changed = [item.with_content(line) for item in old if (line := one_line(item.message.content)) is not None]
    return context.replacing(changed) if changed else context


def one_line(text: str) -> str | None:
    """Write a report in a line: who, how it ended, the first line of its summary. None where nothing is saved by it."""
    found = _REPORT.search(text)
    if found is None:
        return None
    summary = next((line.strip() for line in text[found.end() :].splitlines() if line.strip()), "")
    summary = summary if len(summary) <= _LONGEST else f"{summary[:_LONGEST]}..."
    line = f"{found.group()} {summary}"
    return line if len(line) < len(text) else None
