"""Decides what of a chain of `llm` goes to which session. No I/O.

A reply carries the name and the life of its session in its provider metadata, which `llm` stores with its logs. So a
conversation that is continued, even days later and by `llm -c`, finds its session; only what is new is sent there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm.parts import Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

from cfs.api import Life
from cfs.errors import InvalidRequest
from cfs.wire import FunctionSpec, NewMessage, ToolCall, ToolSpec

METADATA = "cfs"
"""Key of our entry in the provider metadata of a part."""


@dataclass(frozen=True, slots=True)
class ChainSession:
    """A session, and the life that it has; empty where any will do."""

    session: str
    life: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """What a reply carries."""
        return {METADATA: {"session": self.session, "life": self.life}}

    @classmethod
    def of(cls, message: Message) -> "ChainSession | None":
        """Return where a message was recorded, if it was."""
        for part in message.parts:
            metadata = (getattr(part, "provider_metadata", None) or {}).get(METADATA)
            if isinstance(metadata, Mapping) and isinstance(metadata.get("session"), str):
                return cls(metadata["session"], str(metadata.get("life", "")))
        return None


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """What one prompt means for CFS: messages to be kept, then the one to be answered.

    `system` is the system prompt that the session is to have, None to leave it as it is. `guard` restricts the calls to
    the life of the session that the conversation knows.
    """

    session: str
    guard: Life
    kept: Sequence[NewMessage]
    asked: NewMessage
    system: str | None


def plan(messages: Sequence[Message], requested: str | None, fallback: str, system: str | None) -> ChainRequest:
    """Find the session of a chain, and what it does not have yet.

    `requested` is the session that the user has named: it gets the new input only, because its history is its own.
    """
    last, previous = _last_place(messages)
    if previous is not None and requested in (None, previous.session):
        session, new = previous, messages[last + 1 :]
    elif requested is not None:
        session, new = ChainSession(requested), messages[_end_of_replies(messages) :]
    else:
        session, new = ChainSession(fallback), messages
    spoken = [entry for message in new for entry in _converted(message)]
    if not spoken or spoken[-1].role == "assistant":
        raise InvalidRequest("there is nothing to answer: give a prompt, or the results of tools")
    system_texts = [_text(message) for message in new if message.role == "system"]
    guard = Life()
    guard.saw(session.life)
    return ChainRequest(
        session.session, guard, spoken[:-1], spoken[-1], system or (system_texts[-1] if system_texts else None) or None
    )


def answerable(
    message: NewMessage, settings: Mapping[str, Any], tools: Sequence[Any], schema: dict[str, Any] | None
) -> NewMessage:
    """Let a message be answered: with these settings, tools of `llm`, and a JSON schema."""
    specs = [
        ToolSpec(
            function=FunctionSpec(name=tool.name, description=tool.description or None, parameters=tool.input_schema)
        )
        for tool in tools
    ]
    form = None if schema is None else {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    written = message.model_dump(exclude_unset=True)
    return NewMessage.model_validate(
        {**written, "generate": True, "settings": dict(settings), "tools": specs, "response_format": form}
    )


def _last_place(messages: Sequence[Message]) -> tuple[int, ChainSession | None]:
    for index in reversed(range(len(messages))):
        if messages[index].role == "assistant" and (session := ChainSession.of(messages[index])) is not None:
            return index, session
    return -1, None


def _end_of_replies(messages: Sequence[Message]) -> int:
    return max((index + 1 for index, message in enumerate(messages) if message.role == "assistant"), default=0)


def _converted(message: Message) -> list[NewMessage]:
    """Return the messages of a session that a message of `llm` stands for: each result of a tool is one."""
    if message.role == "system":
        return []
    if message.role == "tool":
        return [
            NewMessage(role="tool", content=part.output, tool_call_id=part.tool_call_id, generate=False)
            for part in message.parts
            if isinstance(part, ToolResultPart)
        ]
    if any(not isinstance(part, TextPart | ReasoningPart | ToolCallPart) for part in message.parts):
        raise InvalidRequest("a session keeps text: attachments cannot be sent")
    if message.role == "user":
        return [NewMessage(content=_text(message), generate=False)]
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    thinking = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    reply = NewMessage(role="assistant", content=_text(message), generate=False)
    changes: dict[str, Any] = {"thinking": thinking} if thinking else {}
    if calls:
        changes["tool_calls"] = tuple(
            ToolCall(id=call.tool_call_id or f"call_{number}", name=call.name, arguments=call.arguments)
            for number, call in enumerate(calls)
        )
    return [reply.model_copy(update=changes)]


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))
