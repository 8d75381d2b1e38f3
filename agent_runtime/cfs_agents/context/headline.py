"""A headline: one line that describes an item whose content is elsewhere (O7). No I/O."""

import json

from cfs.wire import ToolCall
from cfs_agents.context.items import ContextItem

LONGEST = 160

_ARGUMENTS = 60


def headline(item: ContextItem, call: ToolCall | None = None) -> str:
    """Return the call that an item answers, if any, and the first line of its content that is not blank."""
    first = _clipped(_first_line(item.message.content), LONGEST)
    if item.item_type != "tool_result":
        calls = ", ".join(_shown(call) for call in item.message.tool_calls)
        return _clipped(f"{first} -> {calls}" if first and calls else first or calls, LONGEST)
    about = _shown(call) if call is not None else item.message.name or "tool"
    return _clipped(f"{about}: {first}", LONGEST)


def _shown(call: ToolCall) -> str:
    arguments = json.dumps(call.arguments, ensure_ascii=False) if call.arguments else ""
    return f"{call.name} {_clipped(arguments, _ARGUMENTS)}".rstrip()


def _first_line(text: str) -> str:
    """Return the first line that is not blank, without splitting the whole text."""
    start = len(text) - len(text.lstrip())
    end = text.find("\n", start)
    return text[start : len(text) if end < 0 else end]


def _clipped(text: str, longest: int) -> str:
    clean = " ".join(text[: 4 * longest].split())
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
