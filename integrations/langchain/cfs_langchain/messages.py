"""Converts messages of LangChain to those of a session and back. Pure: no I/O.

A session keeps the role, the text, the name, the thinking, the calls of tools and the id of the call that a result
belongs to. What else LangChain knows of a message (ids, token counts, metadata of a provider) is not kept. What cannot
be kept is refused: pictures, roles of one's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)

from cfs import wire
from cfs.completions import UNREADABLE
from cfs.errors import InvalidRequest

_THINKING = "reasoning_content"
_TEXT_KEYS = {"text": "text", "output_text": "text"}
_THINKING_KEYS = {"reasoning": "reasoning", "thinking": "thinking"}
_CALLS = {"tool_call", "tool_use", "function_call", "invalid_tool_call"}
"""Kinds of content that repeat what `tool_calls` of the message say."""


def to_session(message: BaseMessage) -> wire.Message:
    """Convert a message; raises `InvalidRequest` for what a session cannot keep."""
    text, thinking = _read(message.content)
    role, extra = _role(message)
    if role == "assistant":
        thinking = str(message.additional_kwargs.get(_THINKING) or "") or thinking
    elif thinking:
        raise InvalidRequest(f"only a model's message has thinking, not one of the type {message.type!r}")
    return wire.Message.model_validate(
        {"role": role, "content": text, "name": message.name, "thinking": thinking or None, **extra}
    )


def from_session(message: wire.Message) -> BaseMessage:
    """Convert a message of a session."""
    common: dict[str, Any] = {"content": message.content, "name": message.name}
    match message.role:
        case "user":
            return HumanMessage(**common)
        case "system":
            return SystemMessage(**common)
        case "tool":
            return ToolMessage(**common, tool_call_id=message.tool_call_id or "")
        case "assistant":
            extras = {_THINKING: message.thinking} if message.thinking else {}
            readable = [call for call in message.tool_calls if not _is_unreadable(call)]
            return AIMessage(
                **common,
                additional_kwargs=extras,
                tool_calls=[ToolCall(name=call.name, args=call.arguments, id=call.id) for call in readable],
                invalid_tool_calls=[
                    InvalidToolCall(
                        type="invalid_tool_call",
                        name=call.name,
                        args=call.arguments[UNREADABLE],
                        id=call.id,
                        error=None,
                    )
                    for call in message.tool_calls
                    if _is_unreadable(call)
                ],
            )


def posted(message: wire.Message) -> wire.NewMessage:
    """Return the body that adds a message to a session, so that nothing answers it."""
    return wire.NewMessage.model_validate({**message.model_dump(exclude_defaults=True), "generate": False})


def _role(message: BaseMessage) -> tuple[wire.Role, dict[str, Any]]:
    match message:
        case HumanMessage():
            return "user", {}
        case SystemMessage():
            return "system", {}
        case ToolMessage():
            return "tool", {"tool_call_id": message.tool_call_id or None}
        case AIMessage():
            calls = [
                {"id": call["id"] or "", "name": call["name"], "arguments": call["args"]} for call in message.tool_calls
            ]
            broken = [
                {"id": call["id"] or "", "name": call["name"] or "", "arguments": {UNREADABLE: call["args"] or ""}}
                for call in message.invalid_tool_calls
            ]
            return "assistant", {"tool_calls": (*calls, *broken)}
        case _:
            raise InvalidRequest(f"a session has no messages of the type {message.type!r}")


def _read(content: str | Sequence[str | Mapping[str, Any]]) -> tuple[str, str]:
    """Return the text and the thinking of a content."""
    if isinstance(content, str):
        return content, ""
    text, thinking = "", ""
    for block in content:
        if isinstance(block, str):
            text += block
            continue
        kind = str(block.get("type"))
        if kind in _TEXT_KEYS:
            text += str(block.get(_TEXT_KEYS[kind], ""))
        elif kind in _THINKING_KEYS:
            thinking += str(block.get(_THINKING_KEYS[kind], ""))
        elif kind not in _CALLS:
            raise InvalidRequest(f"a session keeps text: content of the type {kind!r} cannot be stored")
    return text, thinking


def _is_unreadable(call: wire.ToolCall) -> bool:
    return call.arguments.keys() == {UNREADABLE} and isinstance(call.arguments[UNREADABLE], str)
