"""Session files of Claude Code: a tree of entries as JSON lines, and a file for each sub-agent beside it."""

import json
import re
import uuid
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


class _Block(LenientModel):
    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str | None = None
    content: "str | tuple[_Block, ...] | None" = None
    is_error: bool | None = None


class _Usage(LenientModel):
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0

    @property
    def total(self) -> int:
        return sum(filter(None, (getattr(self, name) for name in _Usage.model_fields)))


class _Message(LenientModel):
    id: str = ""
    role: str = ""
    model: str = ""
    content: str | tuple[_Block, ...] = ""
    usage: _Usage | None = None


class _Line(LenientModel):
    type: str
    uuid: str = ""
    parentUuid: str | None = None  # noqa: N815 - the name in the file
    logicalParentUuid: str | None = None  # noqa: N815
    isSidechain: bool = False  # noqa: N815
    timestamp: str | None = None
    message: _Message | None = None
    summary: str | None = None
    aiTitle: str | None = None  # noqa: N815
    customTitle: str | None = None  # noqa: N815
    cwd: str | None = None
    sessionId: str | None = None  # noqa: N815

    @property
    def blocks(self) -> tuple[_Block, ...]:
        """The content of the message."""
        content = self.message.content if self.message else ()
        return (_Block(type="text", text=content),) if isinstance(content, str) else content

    @property
    def answers(self) -> set[str | None]:
        """The calls whose results this line has."""
        return {block.tool_use_id for block in self.blocks if block.type == "tool_result"}


def read(text: str, name: str, parent: str | None = None, title: str | None = None) -> tuple[ImportedConversation, ...]:
    """Read a session file, whose name is its id. Files of earlier versions contain their sub-agents."""
    damage: list[Damage] = []
    lines: list[_Line] = []
    for number, value in json_lines(text, damage):
        try:
            lines.append(_Line.model_validate(value))
        except ValidationError as error:
            damage.append(Damage(number, reason_of(error)))
    entries = [line for line in lines if line.uuid]
    if entries and all(line.isSidechain for line in entries):  # a sub-agent of the versions that had it beside
        parent = parent or entries[0].sessionId
    main = [line for line in lines if parent or not line.isSidechain]
    side = [] if parent else [line for line in lines if line.isSidechain]
    title = title or _title(main)
    first = _conversation(main, name, parent=parent, title=title, damage=tuple(damage))
    return (first, *(_conversation(group, f"{name}-{group[0].uuid}", parent=name) for group in _groups(side)))


def _title(lines: Iterable[_Line]) -> str | None:
    """Return the user's title, or else the newest of the program's."""
    title = custom = None
    for line in lines:
        title = line.aiTitle or line.summary or title
        custom = line.customTitle or custom
    return custom or title


def _groups(side: Iterable[_Line]) -> list[list[_Line]]:
    """Return the entries of each sub-agent: those that lead to the same root."""
    groups: dict[str, list[_Line]] = {}
    group_of: dict[str, list[_Line]] = {}
    for line in side:
        group = group_of.get(line.parentUuid or "") or groups.setdefault(line.uuid, [])
        group.append(line)
        group_of[line.uuid] = group
    return list(groups.values())


def _conversation(lines: Iterable[_Line], name: str, **more: Any) -> ImportedConversation:
    entries = [line for line in lines if line.uuid]
    builder = Builder()
    reply, counted = "", set()
    for line in _on_path(entries, builder):
        at, message = seconds(line.timestamp), line.message
        if line.type == "attachment":
            builder.lost["attachments"] += 1
        elif line.type == "user":
            _add_user(builder, line, at)
        elif line.type == "assistant" and message is not None:
            if not message.id or message.id != reply or builder.messages[-1].role != "assistant":
                builder.add(Message(role="assistant", content=""), at)
            reply = message.id
            _extend(builder, line, at)
            builder.models |= {message.model: None} if message.model not in ("", "<synthetic>") else {}
            if message.usage and message.id not in counted:  # each line of a reply repeats it
                counted.add(message.id)
                builder.tokens += message.usage.total
    folder = next((line.cwd for line in entries if line.cwd), None)
    return builder.build(name, folder=folder, **more)


def _on_path(entries: list[_Line], builder: Builder) -> list[_Line]:
    """Return the entries of the newest branch. Parallel calls are branches in the file, but not of the conversation."""
    path = path_to_last([(line.uuid, line.parentUuid or line.logicalParentUuid) for line in entries])
    replies = {entries[index].message.id for index in path if entries[index].type == "assistant"}  # type: ignore[union-attr]
    calls: set[str | None] = set()
    chosen = []
    for index, line in enumerate(entries):
        is_part = line.type == "assistant" and line.message is not None and line.message.id in replies - {""}
        if index in path or is_part or line.answers & calls:
            chosen.append(line)
            calls |= {block.id for block in line.blocks if block.type == "tool_use"}
        elif line.message is not None:
            builder.lost["messages of other branches"] += 1
    return chosen


def _add_user(builder: Builder, line: _Line, at: float) -> None:
    for block in line.blocks:
        if block.type == "tool_result":
            text = _text(builder, block.content)
            builder.add_result(at, block.tool_use_id, failed(text) if block.is_error else text)
    text = _text(builder, [block for block in line.blocks if block.type != "tool_result"])
    if text:
        builder.add(Message(role="user", content=text), at)


def _extend(builder: Builder, line: _Line, at: float) -> None:
    for block in line.blocks:
        if block.type == "tool_use":
            builder.extend_reply(at, calls=[ToolCall(id=block.id, name=block.name, arguments=block.input)])
        elif block.type == "redacted_thinking" or (block.type == "thinking" and not block.thinking):
            builder.lost["encrypted thoughts"] += 1
        else:
            builder.extend_reply(at, block.text, block.thinking)


def _text(builder: Builder, content: str | Iterable[_Block] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    pieces = []
    for block in content:
        if block.type in ("image", "document"):
            builder.lost["pictures"] += 1
            pieces.append(IMAGE)
        elif block.text:
            pieces.append(block.text)
    return "\n\n".join(pieces)


def file_name(conversation: ImportedConversation, folder: str) -> str:
    """Return where the file is below `~/.claude`."""
    project = f"projects/{re.sub(r'[^A-Za-z0-9]', '-', folder)}"
    if conversation.parent is None:
        return f"{project}/{conversation.id}.jsonl"
    return f"{project}/{conversation.parent}/subagents/agent-{conversation.id}.jsonl"


def write(conversation: ImportedConversation, folder: str) -> str:
    """Write a session file for a working folder, which `claude --resume ID` continues.

    Thoughts are left out: the API of Anthropic takes only its own, signed.
    """
    lines: list[dict[str, Any]] = []
    parent = None
    common = {
        "isSidechain": conversation.parent is not None,
        "userType": "external",
        "cwd": folder,
        "sessionId": conversation.parent or conversation.id,
        "version": "2.1.197",
        "gitBranch": "",
    }
    if conversation.parent is not None:
        common["agentId"] = conversation.id
    for number, (message, at) in enumerate(zip(conversation.messages, conversation.times, strict=True)):
        for piece in _pieces(message, f"msg_{number}"):
            name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{conversation.id}/{len(lines)}"))
            kind = piece["role"]
            entry = {"parentUuid": parent, "type": kind, "message": piece, "uuid": name, "timestamp": iso(at)}
            lines.append(entry | common)
            parent = name
    if conversation.title and conversation.parent is None:
        lines.append({"type": "custom-title", "customTitle": conversation.title, "sessionId": conversation.id})
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _pieces(message: Message, name: str) -> list[dict[str, Any]]:
    """Return the messages of the Anthropic API for a message: a reply has one for each block."""
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": message.content}
        return [{"role": "user", "content": [result]}]
    if message.role != "assistant":
        return [{"role": "user", "content": message.content}]
    blocks: list[dict[str, Any]] = []
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content or "(no text)"})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in message.tool_calls
    ]
    ending = {"stop_reason": "tool_use" if message.tool_calls else "end_turn", "stop_sequence": None}
    usage = {"input_tokens": 0, "output_tokens": 0}
    return [
        {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": "any",
            "content": [block],
            **ending,
            "usage": usage,
        }
        for block in blocks
    ]
