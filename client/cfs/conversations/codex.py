"""Rollout files of Codex: JSON lines with the items of the Responses API, and events about them."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from cfs.contract.wire import Message, Role, ToolCall
from cfs.conversations.conversation import (
    IMAGE,
    Builder,
    Damage,
    ImportedConversation,
    LenientModel,
    arguments_of,
    iso,
    json_lines,
    reason_of,
    seconds,
)

_ROLES: dict[str, Role] = {"developer": "system", "system": "system", "assistant": "assistant", "user": "user"}
_NOTES = (
    "<environment_context>",
    "<user_instructions>",
    "<subagent_notification>",
    "<turn_aborted>",
    "<skill>",
    "# AGENTS.md instructions",
)
"""How texts begin that Codex sends in the name of the user."""

_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


class _Content(LenientModel):
    type: str = ""
    text: str = ""


class _Item(LenientModel):
    type: str = ""
    role: str = ""
    content: str | tuple[_Content, ...] | None = None
    summary: tuple[_Content, ...] | None = None
    encrypted_content: str | None = None
    name: str = ""
    namespace: str | None = None
    arguments: str = ""
    input: str = ""
    action: dict[str, Any] | None = None
    call_id: str | None = None
    output: str | tuple[_Content, ...] | dict[str, Any] | None = None


class _Instructions(LenientModel):
    text: str = ""


class _Meta(LenientModel):
    id: str = ""
    parent_thread_id: str | None = None
    cwd: str | None = None
    base_instructions: _Instructions | None = None
    instructions: str | None = None
    source: Any = None

    @property
    def parent(self) -> str | None:
        """The session that has started this one."""
        try:
            return self.parent_thread_id or str(self.source["subagent"]["thread_spawn"]["parent_thread_id"])
        except (TypeError, KeyError):
            return None


class _Event(LenientModel):
    type: str = ""
    thread_name: str | None = None
    num_turns: int = 0
    info: dict[str, Any] | None = None
    model: str = ""
    message: str = ""


def read(text: str, name: str, title: str | None = None) -> ImportedConversation:
    """Read a rollout file. `name` is the id of a file that has none."""
    damage: list[Damage] = []
    reader = _RolloutReader()
    for number, value in json_lines(text, damage):
        try:
            reader.line(value)
        except ValidationError as error:
            damage.append(Damage(number, reason_of(error)))
    meta = reader.meta or _Meta()
    return reader.builder.build(
        meta.id or name,
        parent=meta.parent,
        title=reader.title or title,
        system=meta.base_instructions.text if meta.base_instructions else meta.instructions,
        folder=meta.cwd,
        damage=tuple(damage),
    )


class _RolloutReader:
    """Goes through the lines of a file."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.meta: _Meta | None = None
        self.title: str | None = None
        self._turns: list[int] = []

    def line(self, value: dict[str, Any]) -> None:
        """Read a line. Those of the first versions are items without an envelope."""
        kind, payload, at = value.get("type"), value.get("payload", value), seconds(_time(value))
        if kind == "session_meta" or (kind is None and "id" in value):
            self.meta = self.meta or _Meta.model_validate(payload)  # a sub-agent's file may have its parent's, too
        elif kind in ("event_msg", "turn_context"):
            self._event(_Event.model_validate(payload), kind)
        elif kind == "compacted":
            self._compacted(_Event.model_validate(payload).message, at)
        elif kind == "response_item" or "payload" not in value:
            self._item(_Item.model_validate(payload), at)

    def _event(self, event: _Event, kind: str) -> None:
        if kind == "turn_context":
            self.builder.models |= {event.model: None} if event.model else {}
        elif event.type == "task_started":
            self._turns.append(len(self.builder.messages))
        elif event.type == "thread_name_updated":
            self.title = event.thread_name
        elif event.type == "token_count" and event.info:
            total = event.info.get("total_token_usage") or {}
            self.builder.tokens = int(total.get("total_tokens") or self.builder.tokens)
        elif event.type == "thread_rolled_back" and event.num_turns:
            before = len(self.builder.messages)
            self.builder.cut(min(self._turns[-event.num_turns :], default=before))
            del self._turns[-event.num_turns :]
            self.builder.lost["messages of undone turns"] += before - len(self.builder.messages)

    def _compacted(self, summary: str, at: float) -> None:
        if summary:
            text = f"Summary of the conversation before: {summary}"
            self.builder.add(Message(role="system", content=text), at)
        else:
            self.builder.lost["encrypted summaries"] += 1

    def _item(self, item: _Item, at: float) -> None:
        if item.type == "message":
            role, text = _ROLES.get(item.role, "user"), self._text(item.content)
            if role == "user" and text.startswith(_NOTES):
                role = "system"
            if role == "assistant":
                self.builder.extend_reply(at, text)
            else:
                self.builder.add(Message(role=role, content=text), at)
        elif item.type == "reasoning":
            thinking = self._text(item.content) or self._text(item.summary)
            if thinking:
                self.builder.extend_reply(at, thinking=thinking)
            elif item.encrypted_content:
                self.builder.lost["encrypted thoughts"] += 1
        elif item.type in _CALLS:
            self._call(item, at)
        elif item.type in _RESULTS:
            self.builder.add_result(at, item.call_id, self._output(item.output))
        elif item.type == "web_search_call":
            self.builder.lost["web searches of the provider"] += 1

    def _call(self, item: _Item, at: float) -> None:
        name = item.name or "local_shell"
        if item.namespace and not name.startswith(item.namespace):
            name = f"{item.namespace}__{name}"
        arguments = item.action if item.action is not None else arguments_of(item.arguments or item.input)
        self.builder.extend_reply(at, calls=[ToolCall(id=item.call_id or "", name=name, arguments=arguments)])

    def _output(self, output: Any) -> str:
        if isinstance(output, dict):
            return self._output(output.get("content")) or json.dumps(output, ensure_ascii=False)
        return self._text(output)

    def _text(self, content: str | Iterable[_Content] | None) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        pieces = []
        for part in content:
            if part.type == "input_image":
                self.builder.lost["pictures"] += 1
                pieces.append(IMAGE)
            elif part.text:
                pieces.append(part.text)
        return "\n\n".join(pieces)


def _time(value: dict[str, Any]) -> str | None:
    time = value.get("timestamp")
    return time if isinstance(time, str) else None


def file_name(conversation: ImportedConversation, folder: str) -> str:  # noqa: ARG001 - the working folder is in the file
    """Return where the file is below `~/.codex`."""
    start = datetime.fromtimestamp(min(conversation.times, default=0.0), UTC)
    return f"sessions/{start:%Y/%m/%d}/rollout-{start:%Y-%m-%dT%H-%M-%S}-{conversation.id}.jsonl"


def write(conversation: ImportedConversation, folder: str) -> str:
    """Write a rollout file for a working folder, which `codex resume ID` continues.

    Thoughts are left out: the API of OpenAI takes only its own, encrypted.
    """
    start = iso(min(conversation.times, default=0.0))
    meta: dict[str, Any] = {
        "id": conversation.id,
        "timestamp": start,
        "cwd": folder,
        "originator": "cfs",
        "cli_version": "0.171.0",
        "source": "exec",
        "model_provider": "cfs",
    }
    if conversation.parent is not None:
        meta["source"] = {"subagent": {"thread_spawn": {"parent_thread_id": conversation.parent, "depth": 1}}}
    if conversation.system:
        meta["base_instructions"] = {"text": conversation.system}
    lines: list[dict[str, Any]] = [{"timestamp": start, "type": "session_meta", "payload": meta}]
    for message, at in zip(conversation.messages, conversation.times, strict=True):
        if message.role == "user":  # what lists of sessions show
            event = {"type": "user_message", "message": message.content, "kind": "plain"}
            lines.append({"timestamp": iso(at), "type": "event_msg", "payload": event})
        lines += [{"timestamp": iso(at), "type": "response_item", "payload": item} for item in _items(message)]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id or "", "output": message.content}]
    items: list[dict[str, Any]] = []
    if message.content or not message.tool_calls:
        kind = "output_text" if message.role == "assistant" else "input_text"
        role = "developer" if message.role == "system" else message.role
        items.append({"type": "message", "role": role, "content": [{"type": kind, "text": message.content}]})
    for call in message.tool_calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        items.append({"type": "function_call", "name": call.name, "arguments": arguments, "call_id": call.id})
    return items
