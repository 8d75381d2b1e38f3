"""Messages of completions, and their conversion to and from messages of sessions."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from cfs.contract import wire

UNREADABLE = "_unreadable"
"""Key for arguments that are not a JSON object, so that no output of a model is lost."""


class Open(BaseModel):
    """A pydantic model that ignores unknown members, as the protocol grows."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class TextPart(Open):
    """A piece of a content. There are no others here: no pictures, no sound, no files."""

    type: Literal["text"]
    text: str


def _text_only(value: Any) -> Any:
    """Report the type of the first part that is not text, with a clearer message than that of a union."""
    if not isinstance(value, list):
        return value
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text":
            raise ValueError(f"only parts of the type 'text' are read here, this one is {kind!r}")
    return tuple(value)


Content = Annotated[
    str | tuple[TextPart, ...] | None,
    BeforeValidator(_text_only),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}},
                {"type": "null"},
            ]
        }
    ),
]


class FunctionCall(Open):
    """A tool's name, and its arguments as JSON text."""

    name: str
    arguments: str = "{}"


class ChatToolCall(Open):
    """A call that an assistant's message makes."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Open):
    """One message of a conversation. `developer` is another word for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: tuple[ChatToolCall, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        """The content; parts are joined."""
        if isinstance(self.content, tuple):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def message(self) -> wire.Message:
        """Convert to a message of a session."""
        return wire.Message(
            role="system" if self.role == "developer" else self.role,
            content=self.text,
            tool_calls=tuple(
                wire.ToolCall(id=call.id, name=call.function.name, arguments=read_arguments(call.function.arguments))
                for call in self.tool_calls or ()
            ),
            tool_call_id=self.tool_call_id,
            name=self.name,
            thinking=self.reasoning_content or None,
        )

    @classmethod
    def of(cls, message: wire.Message) -> Self:
        """Convert from a message of a session."""
        calls = tuple(
            ChatToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=write_arguments(call.arguments)))
            for call in message.tool_calls
        )
        return cls(
            role=message.role,
            content=None if calls and not message.content else message.content,
            name=message.name,
            tool_calls=calls or None,
            tool_call_id=message.tool_call_id,
            reasoning_content=message.thinking,
        )


def read_arguments(text: str) -> dict[str, Any]:
    """Parse a call's arguments; text that is not a JSON object is stored under `UNREADABLE`."""
    try:
        arguments = json.loads(text, strict=False) if text.strip() else {}
        if isinstance(arguments, dict):
            write_arguments(arguments).encode()  # JSON allows a lone surrogate, UTF-8 does not
            return arguments
    except (ValueError, RecursionError):
        pass
    return {UNREADABLE: text}


def write_arguments(arguments: dict[str, Any]) -> str:
    """Write a call's arguments as JSON; raises `ValueError` for numbers that JSON does not have."""
    if arguments.keys() == {UNREADABLE} and isinstance(arguments[UNREADABLE], str):
        return str(arguments[UNREADABLE])
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
