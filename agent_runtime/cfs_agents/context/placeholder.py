"""Placeholders: what replaces off-loaded content in the prompt (O2). No I/O."""

import unicodedata
from collections.abc import Mapping

from cfs_agents.context.documents import ItemRecord
from cfs_agents.context.tokens import estimate

OFFLOADED = "[Content offloaded]"
HOW_TO_READ = "Use Read tool to view details."
DESTROYED = "[Output removed: newer outputs of the same tool follow]"
DESTROYED_BRIEFLY = "[removed]"

_JOINERS = "\u200d\ufe0e\ufe0f"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FURTHEST = 32


def placeholder(record: ItemRecord, path: str, content: str = "", *, preview: int = 0) -> str:
    """Return the placeholder for content on disk: its path, size and headline.

    With `preview` its beginning and its end follow, of about so many tokens together.
    """
    lines = content.count("\n") + (not content.endswith("\n")) if content else 0
    size = f"Size: {record.size:,} bytes" + (f", {lines:,} lines" if content else "")
    size += f", {record.tokens:,} tokens" if record.tokens is not None else ""
    sections = [OFFLOADED, f"Path: {path}", HOW_TO_READ, size]
    if record.summary:
        sections.append(f"Summary: {record.summary}")
    if record.redactions:
        sections.append(f"Secrets were taken out: {_listed(record.redactions)}")
    if preview > 0 and content:
        head, tail = beginning(content, preview // 2), ending(content, preview // 2)
        if len(head) + len(tail) < len(content):
            hidden = len(content) - len(head) - len(tail)
            sections += ["Beginning:", head.rstrip("\n"), f"[... {hidden:,} characters ...]", "End:", tail.rstrip("\n")]
        else:
            sections += ["Content:", content]
    return "\n".join(sections)


def beginning(text: str, tokens: int) -> str:
    """Return the beginning of a text, at most so many tokens: whole lines if possible, never half a character."""
    size = _fitting(text[: 4 * tokens], tokens)
    if size == len(text):
        return text
    line = text.rfind("\n", size // 2, size)
    return text[: _boundary(text, size)] if line < 0 else text[: line + 1]


def ending(text: str, tokens: int) -> str:
    """Return the end of a text in the same way."""
    size = _fitting(text[-4 * tokens :][::-1], tokens) if tokens else 0
    start = len(text) - size
    if start == 0:
        return text
    line = text.find("\n", start, start + size // 2)
    return text[_boundary(text, start, -1) :] if line < 0 else text[line + 1 :]


def _fitting(text: str, tokens: int) -> int:
    """Return how many characters from the start cost at most so many tokens."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if estimate(text[:middle]) <= tokens:
            low = middle
        else:
            high = middle - 1
    return low


def _boundary(text: str, at: int, towards: int = 1) -> int:
    """Move a cut to a boundary between visible characters: to the left, or to the right if `towards` is -1."""
    position = at
    while 0 < position < len(text) and abs(position - at) < _FURTHEST and _joined(text[position - 1], text[position]):
        position -= towards
    return position


def _joined(left: str, right: str) -> bool:
    return (
        unicodedata.combining(right) > 0
        or right in _JOINERS
        or left == "\u200d"
        or ord(right) in _SKIN_TONES
        or (left == "\r" and right == "\n")
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in counts.items())
