"""A history as every upstream takes it. Pure: no I/O.

Both protocols refuse a call of a tool that its results do not follow directly. Histories of ours may have such calls:
a turn was cancelled, a user wrote in between, a transcript was edited.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cfs.errors import EngineError
from cfs.transcript import PREFIXES, render, reply_stops
from cfs.wire import Message, ToolCall
from cfs_server.engine.interface import GenerationRequest

NO_RESULT = "(there is no result: the call did not come to its end)"
_MOST_STOPS = 4
"""How many strings that end a reply some servers take; those that were asked for come first."""
_ODD = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a turn's request says: the instruction, the messages, and the strings that end the reply."""

    system: str
    messages: tuple[Message, ...]
    stops: tuple[str, ...]


def conversation_of(request: GenerationRequest) -> Conversation:
    """Prepare the history of a turn (S8).

    With `prompt_style=transcript` it becomes one message that the model goes on with. Raises `EngineError` when that
    is asked for together with tools.
    """
    settings = request.settings
    if settings.prompt_style == "transcript":
        if request.tools:
            raise EngineError("tools need prompt_style=chat")
        leading = (Message(role="system", content=settings.system),) if settings.system else ()
        text = render([*leading, *request.messages]) + PREFIXES["assistant"]
        stops = reply_stops(settings.stop)[: max(_MOST_STOPS, len(settings.stop or ()))]
        return Conversation("", (Message(role="user", content=text),), stops)
    leading_messages, rest = _split(request.messages)
    system = "\n\n".join(text for text in (settings.system or "", *(m.content for m in leading_messages)) if text)
    return Conversation(system, tuple(paired(rest)), settings.stop or ())


def paired(messages: Sequence[Message]) -> list[Message]:
    """Put the results of each call directly behind it, and make up those that are missing.

    Ids of calls become unique and safe. A result without a call becomes a user's message.
    """
    found: list[Message] = []
    seen: set[str] = set()
    used: set[int] = set()
    for index, message in enumerate(messages):
        if message.role == "assistant" and message.tool_calls:
            calls = tuple(_renamed(call, seen) for call in message.tool_calls)
            found.append(message.model_copy(update={"tool_calls": calls}))
            for old, call in zip(message.tool_calls, calls, strict=True):
                at = _result_of(messages, index, old.id, used)
                used.add(at)
                content = messages[at].content if at >= 0 else NO_RESULT
                found.append(Message(role="tool", content=content, tool_call_id=call.id, name=call.name))
        elif message.role == "tool":
            if index not in used:
                found.append(Message(role="user", content=f"(result of {message.name or 'a tool'}) {message.content}"))
        else:
            found.append(message)
    return found


def _split(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    count = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    return messages[:count], messages[count:]


def _renamed(call: ToolCall, seen: set[str]) -> ToolCall:
    base = _ODD.sub("_", call.id) or "call"
    name, number = base, 1
    while name in seen:
        number += 1
        name = f"{base}_{number}"
    seen.add(name)
    return call if name == call.id else call.model_copy(update={"id": name})


def _result_of(messages: Sequence[Message], start: int, call_id: str, used: set[int]) -> int:
    """Find the result of a call before the model's next message; -1 when there is none."""
    for index in range(start + 1, len(messages)):
        message = messages[index]
        if message.role == "assistant":
            break
        if message.role == "tool" and message.tool_call_id == call_id and index not in used:
            return index
    return -1
