"""Session files of the pi coding agent: a tree of entries as JSON lines, of which the last one is the leaf."""

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic import Field, ValidationError

from cfs.contract.wire import Message, ToolCall
from cfs.conversations.conversation import (
    IMAGE,
    Builder,
    Damage,
    ImportedConversation,
    LenientModel,
    failed,
    iso,
    json_lines,
    path_to_last,
    reason_of,
    seconds,
)

VERSION = 3
"""Of the files that are written here. Earlier ones are read, too."""


class _Block(LenientModel):
    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)


class _Usage(LenientModel):
    totalTokens: int = 0  # noqa: N815 - the name in the file


class _Message(LenientModel):
    role: str
    content: str | tuple[_Block, ...] = ""
    model: str = ""
    usage: _Usage = _Usage()
    toolCallId: str | None = None  # noqa: N815
    toolName: str | None = None  # noqa: N815
    isError: bool = False  # noqa: N815
    errorMessage: str | None = None  # noqa: N815
    command: str = ""
    output: str = ""


class _Line(LenientModel):
    type: str
    id: str = ""
    parentId: str | None = None  # noqa: N815
    timestamp: str | float | None = None
    message: _Message | None = None
    content: str | tuple[_Block, ...] = ""
    summary: str = ""
    name: str | None = None
    cwd: str | None = None


def read(text: str, name: str) -> ImportedConversation:
    """Read a session file. `name` is the id of a file that has none."""
    damage: list[Damage] = []
    lines: list[_Line] = []
    for number, value in json_lines(text, damage):
        try:
            lines.append(_Line.model_validate(value))
        except ValidationError as error:
            damage.append(Damage(number, reason_of(error)))
    header = next((line for line in lines if line.type == "session"), _Line(type="session"))
    entries = [line for line in lines if line.type != "session"]
    path = path_to_last([(line.id, line.parentId) for line in entries])
    builder, title = Builder(), None
    for index, line in enumerate(entries):
        if line.type == "session_info":
            title = line.name
        elif index in path:
            _add(builder, line)
        elif line.type == "message":
            builder.lost["messages of other branches"] += 1
    return builder.build(header.id or name, title=title, folder=header.cwd, damage=tuple(damage))


def _add(builder: Builder, line: _Line) -> None:
    at = seconds(line.timestamp)
    if line.type in ("compaction", "branch_summary"):
        builder.add(Message(role="system", content=f"Summary of the conversation before: {line.summary}"), at)
    elif line.type == "custom_message":
        builder.add(Message(role="user", content=_text(builder, line.content)), at)
    elif line.message is not None:
        _add_message(builder, line.message, at)


def _add_message(builder: Builder, message: _Message, at: float) -> None:
    text = _text(builder, message.content)
    if message.role == "assistant":
        blocks = message.content if isinstance(message.content, tuple) else ()
        calls = [
            ToolCall(id=block.id, name=block.name, arguments=block.arguments)
            for block in blocks
            if block.type == "toolCall"
        ]
        builder.add(Message(role="assistant", content=""), at)
        thinking = "\n\n".join(block.thinking for block in blocks if block.thinking)
        builder.extend_reply(at, text or (f"[Error: {message.errorMessage}]" if message.errorMessage else ""))
        builder.extend_reply(at, thinking=thinking, calls=calls)
        builder.tokens += message.usage.totalTokens
        builder.models |= {message.model: None} if message.model else {}
    elif message.role == "toolResult":
        content = failed(text) if message.isError else text
        builder.add_result(at, message.toolCallId, content, message.toolName)
    elif message.role == "bashExecution":
        builder.add(Message(role="user", content=f"$ {message.command}\n{message.output}"), at)
    elif message.role == "system":
        builder.add(Message(role="system", content=text), at)
    else:
        builder.add(Message(role="user", content=text), at)


def _text(builder: Builder, content: str | Iterable[_Block]) -> str:
    if isinstance(content, str):
        return content
    pieces = []
    for block in content:
        if block.type == "image":
            builder.lost["pictures"] += 1
            pieces.append(IMAGE)
        elif block.type == "text":
            pieces.append(block.text)
    return "\n\n".join(pieces)


def file_name(conversation: ImportedConversation, folder: str) -> str:
    """Return where the file is below `~/.pi/agent`."""
    start = re.sub(r"[:.]", "-", iso(min(conversation.times, default=0.0)))
    project = re.sub(r"[/:\\\\]", "-", folder.strip("/"))
    return f"sessions/--{project}--/{start}_{conversation.id}.jsonl"


def write(conversation: ImportedConversation, folder: str) -> str:
    """Write a session file for a working folder, which `pi --session FILE` continues."""
    start = iso(min(conversation.times, default=0.0))
    header = {"type": "session", "version": VERSION, "id": conversation.id, "timestamp": start, "cwd": folder}
    lines: list[dict[str, Any]] = [header]
    entries: list[tuple[float, dict[str, Any]]] = []
    if conversation.title:
        entries.append((min(conversation.times, default=0.0), {"type": "session_info", "name": conversation.title}))
    for message, at in zip(conversation.messages, conversation.times, strict=True):
        entries.append((at, {"type": "message", "message": _entry(message, at)}))
    for number, (at, entry) in enumerate(entries):
        parent = f"{number:08x}" if number else None
        lines.append({"id": f"{number + 1:08x}", "parentId": parent, "timestamp": iso(at)} | entry)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _entry(message: Message, at: float) -> dict[str, Any]:
    stamp = int(at * 1000)
    text = [{"type": "text", "text": message.content}] if message.content else []
    if message.role == "assistant":
        thinking = [{"type": "thinking", "thinking": message.thinking}] if message.thinking else []
        calls = [
            {"type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
        return {
            "role": "assistant",
            "content": [*thinking, *text, *calls],
            "api": "openai-completions",
            "provider": "cfs",
            "model": "any",
            "usage": _NO_USAGE,
            "stopReason": "toolUse" if calls else "stop",
            "timestamp": stamp,
        }
    if message.role == "tool":
        names = {"toolCallId": message.tool_call_id or "", "toolName": message.name or ""}
        return {"role": "toolResult", **names, "content": text, "isError": False, "timestamp": stamp}
    return {"role": "user", "content": text, "timestamp": stamp}


_NO_COST = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
_NO_USAGE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0, "cost": _NO_COST}
