"""Sessions of opencode, as `opencode export` writes them: a session, and its messages with their parts."""

import hashlib
import json
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
    reason_of,
    seconds,
)


class _Time(LenientModel):
    created: float = 0
    start: float = 0
    end: float | None = None


class _Cache(LenientModel):
    read: float = 0
    write: float = 0


class _Tokens(LenientModel):
    input: float = 0
    output: float = 0
    reasoning: float = 0
    cache: _Cache = _Cache()

    @property
    def total(self) -> int:
        return int(self.input + self.output + self.reasoning + self.cache.read + self.cache.write)


class _State(LenientModel):
    status: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    output: str = ""
    error: str = ""
    time: _Time = _Time()

    @property
    def result(self) -> str:
        """What the call has returned. One that was interrupted has no result."""
        return self.output if self.status == "completed" else failed(self.error or "interrupted")


class _Part(LenientModel):
    type: str
    text: str = ""
    tool: str = ""
    callID: str = ""  # noqa: N815 - the name in the file
    state: _State = _State()
    mime: str = ""
    filename: str | None = None


class _Info(LenientModel):
    id: str = ""
    role: str
    time: _Time = _Time()
    tokens: _Tokens = _Tokens()
    modelID: str = ""  # noqa: N815
    error: dict[str, Any] | None = None


class _Revert(LenientModel):
    messageID: str = ""  # noqa: N815


class _Session(LenientModel):
    id: str
    revert: _Revert | None = None
    title: str | None = None
    parentID: str | None = None  # noqa: N815
    directory: str | None = None


def read(info: dict[str, Any], messages: Iterable[tuple[dict[str, Any], list[dict[str, Any]]]]) -> ImportedConversation:
    """Read a session: its `info`, and the `info` of each message with its parts, in order.

    Damage is counted by messages, beginning with 1. Raises `ValidationError` if the session itself is none.
    """
    session = _Session.model_validate(info)
    builder = Builder()
    damage: list[Damage] = []
    for number, (header, pieces) in enumerate(messages, 1):
        try:
            message = _Info.model_validate(header)
        except ValidationError as error:
            damage.append(Damage(number, reason_of(error)))
            continue
        if session.revert is not None and message.id >= session.revert.messageID:  # ids sort by time
            builder.lost["messages of undone turns"] += 1
            continue
        parts = []
        for piece in pieces:
            try:
                parts.append(_Part.model_validate(piece))
            except ValidationError as error:
                damage.append(Damage(number, reason_of(error)))
        _add(builder, message, parts)
    return builder.build(
        session.id, title=session.title, parent=session.parentID, folder=session.directory, damage=tuple(damage)
    )


def _add(builder: Builder, message: _Info, parts: Iterable[_Part]) -> None:
    at = seconds(message.time.created)
    if message.role != "assistant":
        text = "\n\n".join(filter(None, (_text(builder, part) for part in parts)))
        builder.add(Message(role="user", content=text), at)
        return
    builder.tokens += message.tokens.total
    builder.models |= {message.modelID: None} if message.modelID else {}
    results: list[tuple[float, str, str]] = []
    builder.add(Message(role="assistant", content=""), at)
    for part in parts:
        if results and part.type in ("step-start", "reasoning", "text"):  # a message of earlier versions has all steps
            _flush(builder, results)
            builder.add(Message(role="assistant", content=""), at)
        if part.type == "tool":
            builder.extend_reply(at, calls=[ToolCall(id=part.callID, name=part.tool, arguments=part.state.input)])
            results.append((seconds(part.state.time.end) or at, part.callID, part.state.result))
        elif part.type == "reasoning":
            builder.extend_reply(at, thinking=part.text)
        else:
            builder.extend_reply(at, _text(builder, part))
    if message.error is not None and not builder.messages[-1].content:
        builder.extend_reply(at, f"[Error: {message.error.get('name', 'unknown')}]")
    _flush(builder, results)


def _flush(builder: Builder, results: list[tuple[float, str, str]]) -> None:
    for at, call_id, text in results:
        builder.add_result(at, call_id, text)
    results.clear()


def _text(builder: Builder, part: _Part) -> str:
    if part.type == "file":
        builder.lost["pictures" if part.mime.startswith("image/") else "attached files"] += 1
        return IMAGE if part.mime.startswith("image/") else f"[file {part.filename or ''}]"
    if part.type == "compaction":
        builder.lost["marks of summaries"] += 1
    return part.text if part.type == "text" else ""


def file_name(conversation: ImportedConversation, folder: str) -> str:  # noqa: ARG001 - the working folder is in the file
    """Return a name for the file."""
    return f"{_identifier('ses', conversation.id)}.json"


def write(conversation: ImportedConversation, folder: str) -> str:
    """Write a session for a working folder, which `opencode import FILE` takes."""
    session = _identifier("ses", conversation.id)
    start = int(min(conversation.times, default=0.0) * 1000)
    end = int(max(conversation.times, default=0.0) * 1000)
    info: dict[str, Any] = {
        "id": session,
        "slug": session,
        "projectID": "global",
        "directory": folder,
        "title": conversation.title or "Conversation of CFS",
        "version": "1.18.33",
        "time": {"created": start, "updated": end},
    }
    if conversation.parent is not None:
        info["parentID"] = _identifier("ses", conversation.parent)
    outputs = {m.tool_call_id: m.content for m in conversation.messages if m.role == "tool"}
    messages: list[dict[str, Any]] = []
    user = ""
    for number, (message, at) in enumerate(zip(conversation.messages, conversation.times, strict=True)):
        if message.role == "tool":
            continue
        name, stamp = _ordered("msg", number, conversation.id), int(at * 1000)
        parts = _parts(message, outputs, stamp)
        for index, part in enumerate(parts):
            part |= {"id": _ordered("prt", number * 1000 + index, conversation.id), "sessionID": session}
            part["messageID"] = name
        header: dict[str, Any] = {"id": name, "sessionID": session, "role": message.role}
        if message.role == "assistant":
            header |= _REPLY | {"parentID": user, "path": {"cwd": folder, "root": "/"}}
            header["time"] = {"created": stamp, "completed": stamp}
        else:
            user = name
            header |= {"role": "user", "time": {"created": stamp}, "agent": "build", "model": _MODEL}
        messages.append({"info": header, "parts": parts})
    return json.dumps({"info": info, "messages": messages}, ensure_ascii=False, indent=1) + "\n"


_MODEL = {"providerID": "cfs", "modelID": "any"}
_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_REPLY: dict[str, Any] = {"mode": "build", "agent": "build", "cost": 0, "tokens": _TOKENS, **_MODEL, "finish": "stop"}


def _parts(message: Message, outputs: dict[str | None, str], stamp: int) -> list[dict[str, Any]]:
    time = {"start": stamp, "end": stamp}
    parts: list[dict[str, Any]] = []
    if message.thinking:
        parts.append({"type": "reasoning", "text": message.thinking, "time": time})
    if message.content or not message.tool_calls:
        parts.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        state: dict[str, Any] = {"input": call.arguments, "time": time}
        if call.id in outputs:
            state |= {"status": "completed", "output": outputs[call.id], "title": call.name, "metadata": {}}
        else:
            state |= {"status": "error", "error": "no result"}
        parts.append({"type": "tool", "tool": call.name, "callID": call.id, "state": state})
    return parts


def _identifier(kind: str, text: str) -> str:
    """Return an id in the form of opencode. An id that has this form stays as it is."""
    return text if text.startswith(f"{kind}_") else f"{kind}_{hashlib.sha256(text.encode()).hexdigest()[:26]}"


def _ordered(kind: str, number: int, text: str) -> str:
    """Return an id that sorts by its number: opencode orders messages by their ids."""
    return f"{kind}_{number:012x}{hashlib.sha256(text.encode()).hexdigest()[:14]}"
