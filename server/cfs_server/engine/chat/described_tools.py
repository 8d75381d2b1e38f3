"""Conversations with tools for models whose chat template supports none, or only parts of them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cfs.wire import Message
from cfs_server.engine.chat.tool_call_formats import ANYWHERE, FencedBlock

# A model may repeat the texts below, and the repetition must not parse as a call. So the reply parser refuses text in
# angle brackets, JSON with a description and no mark, and incomplete marks.
_MARKS = re.compile("|".join(re.escape(mark) for mark in (*(form.MARK for form in ANYWHERE), FencedBlock.MARK)))


_MARKS_IN_TEXT = re.compile(_MARKS.pattern + r'|\{(?=\s*")')


_TAGGED = """\
You can call functions. They are described here, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and its arguments between two tags, and nothing after it:
<tool_call>{{"name": <tool>, "arguments": {{<key>: <value>}}}}</tool_call>
For several calls write several of these. The results come with the next message. Call a function only when it helps; \
otherwise just answer."""


_BRACKETED = """\
You can call these tools:
{tools}
To call one, write [CALL:<tool>(<key>=<value>)] with plain values, and nothing after it. The next message brings \
the result. Answer without a call when you know enough."""


def described_with_tags(tools: Iterable[Mapping[str, Any]]) -> str:
    """Describe tools, and the form of calls that most models have seen."""
    lines = [json.dumps(_described(tool), ensure_ascii=False) for tool in tools]
    lines = [_MARKS.sub(lambda mark: f"\\u{ord(mark[0][0]):04x}{mark[0][1:]}", line) for line in lines]
    return _TAGGED.format(tools="\n".join(lines))


def described_for_transcripts(tools: Iterable[Mapping[str, Any]]) -> str:
    """Describe tools, and calls in the form in which transcripts show them (S6, C8)."""
    lines = [_MARKS_IN_TEXT.sub(lambda mark: f"{mark[0][0]}\u2060{mark[0][1:]}", _line(tool)) for tool in tools]
    return _BRACKETED.format(tools="\n".join(lines))


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """Put a text before the system message, or make one of it."""
    if not text:
        return list(messages)
    if messages and messages[0].role == "system":
        first = messages[0]
        return [first.model_copy(update={"content": f"{text}\n\n{first.content}".rstrip()}), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def named_results(messages: Iterable[Message]) -> list[Message]:
    """Add the name of the tool to each tool result: some templates need it, and most programs omit it."""
    names: dict[str | None, str] = {}
    results = []
    for message in messages:
        names.update({call.id: call.name for call in message.tool_calls})
        if message.role == "tool" and message.name is None and message.tool_call_id in names:
            message = message.model_copy(update={"name": names[message.tool_call_id]})
        results.append(message)
    return results


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    return {"name": function.get("name"), "description": function.get("description") or "", **function}


def _line(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    parameters = ", ".join(
        f"{name}: {_kind(of)}{'' if name in required else ' (optional)'}" for name, of in properties.items()
    )
    description = " ".join(str(function.get("description") or "").split())
    return f"- {function.get('name')}({parameters}): {description}".rstrip(": ")


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else " | ".join(map(str, kind))
