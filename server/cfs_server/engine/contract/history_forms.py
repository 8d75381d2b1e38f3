"""The forms in which a history is sent to a model (S8, E4). Pure: no I/O, and the stored history never changes.

`PLAIN` is the history as it is, with each call and its result together. Some servers and chat templates refuse more;
`STRICT` satisfies all rules that are known, and `TEXT` also those of servers that take no calls of tools. Sources:

- each call is followed by its result: anomalyco/opencode#21326, microsoft/vscode#299295 (Gemini),
  mistralai/client-ts#106
- roles alternate: vllm-project/vllm#6862, BerriAI/litellm#8018 (DeepSeek), google/adk-python#1373 (Gemma)
- no message of the user directly after a result: pipecat-ai/pipecat-flows#178 (Mistral, code 3230)
- the user begins: google-gemini/gemini-cli#11814; the user or a tool ends: 0xPlaygrounds/rig#1130 (Mistral),
  ggml-org/llama.cpp#20861, crewAIInc/crewAI#6973 (Gemini)
- no empty message of the model: labring/FastGPT#3575, OpenHands/OpenHands#8685 (Mistral), ollama (by
  NousResearch/hermes-agent#80265); no blank text: anthropics/claude-code#23369, boto/botocore#3525 (Bedrock)
- system messages only at the beginning: ggml-org/llama.cpp#27367, ollama/ollama#17774, QwenLM/Qwen3.8#244
- ids of calls: at most 40 characters, BerriAI/litellm#17343, Portkey-AI/gateway#1062 (OpenAI, Azure); nine letters and
  digits, anomalyco/opencode#1680, ml-explore/mlx-lm#1375 (Mistral)
- names of tools: at most 64 of `A-Za-z0-9_-`, brekkylab/ailoy#109, nanbingxyz/5ire#403 (OpenAI, Anthropic, DeepSeek)
- no calls at all: huggingface/text-generation-inference#3198 (Gemma), securo-finance/securo#884 (Gemini, which wants
  signatures with its calls)
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

from cfs.wire import Message, ToolCall


class HistoryForm(IntEnum):
    """A form of a history; a greater one satisfies more servers, and says less in their own terms."""

    PLAIN = 0
    STRICT = 1
    TEXT = 2


NO_RESULT = "(there is no result: the call did not come to its end)"
NOTHING = "(nothing)"
"""What the user says where a server wants a message of his."""
NO_OUTPUT = "(no output)"
NO_REPLY = "(no reply)"
"""What the model says between a tool's result and a message of the user, if it did not reply."""
_NOTHING = Message(role="user", content=NOTHING)
_NO_REPLY = Message(role="assistant", content=NO_REPLY)
SHORT_ID = 9
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_HASHED = 6
_Tool = dict[str, Any]


def in_form(messages: Sequence[Message], form: HistoryForm) -> list[Message]:
    """Put a history into a form. System messages at its beginning belong elsewhere: leave them out before."""
    pairs = paired(messages)
    if form is HistoryForm.PLAIN:
        return pairs
    return _strict(map(_as_text, pairs) if form is HistoryForm.TEXT else pairs)


def paired(messages: Sequence[Message]) -> list[Message]:
    """Put the results of each call directly behind it, and make up those that are missing.

    Ids of calls become unique and safe. A result without a call becomes a user's message.
    """
    pairs: list[Message] = []
    seen: set[str] = set()
    used: set[int] = set()
    for index, message in enumerate(messages):
        if message.role == "assistant" and message.tool_calls:
            calls = tuple(_renamed(call, seen) for call in message.tool_calls)
            pairs.append(message if calls == message.tool_calls else message.model_copy(update={"tool_calls": calls}))
            for old, call in zip(message.tool_calls, calls, strict=True):
                at = _result_of(messages, index, old.id, used)
                used.add(at)
                pairs.append(_result(call, messages[at] if at >= 0 else None))
        elif message.role == "tool":
            if index not in used:
                content = f"(result of {message.name or 'a tool'}) {message.content}"
                pairs.append(Message(role="user", content=content))
        else:
            pairs.append(message)
    return pairs


@lru_cache(maxsize=1 << 14)
def _safe(call_id: str) -> str:
    return _ODD.sub("_", call_id) or "call"


def _renamed(call: ToolCall, seen: set[str]) -> ToolCall:
    base = _safe(call.id)
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


def _result(call: ToolCall, message: Message | None) -> Message:
    if message is not None and (message.tool_call_id, message.name) == (call.id, call.name):
        return message
    content = NO_RESULT if message is None else message.content
    return Message(role="tool", content=content, tool_call_id=call.id, name=call.name)


def _strict(messages: Iterable[Message]) -> list[Message]:
    """Let roles alternate, from the user's first message to a last one that the model can answer."""
    turns: list[Message] = []
    runs: dict[int, list[Message]] = {}  # of one role: they become one message
    last = ""
    for message in messages:
        role = message.role
        if role == "tool":
            turns.append(message.model_copy(update={"content": NO_OUTPUT}) if _is_blank(message) else message)
            last = role
            continue
        if not message.tool_calls and _is_blank(message):
            continue
        if role == "system":
            message, role = _instruction(message), "user"
        if role == last:
            index = len(turns) - 1
            runs.setdefault(index, [turns[index]]).append(message)
            continue
        if role == "user" and last == "tool":
            turns.append(_NO_REPLY)
        elif role == "assistant" and not turns:
            turns.append(_NOTHING)
        turns.append(message)
        last = role
    for index, run in runs.items():
        turns[index] = _joined(run)
    return turns if last in ("user", "tool") else [*turns, _NOTHING]


def systems_as_user(messages: Iterable[Message]) -> list[Message]:
    """Turn system messages into messages of the user, at the same position."""
    return [_instruction(message) if message.role == "system" else message for message in messages]


def _instruction(message: Message) -> Message:
    return Message(role="user", content=f"(system) {message.content}")


def _joined(run: Sequence[Message]) -> Message:
    content = "\n\n".join(message.content for message in run if not _is_blank(message))
    last = run[-1]
    if last.tool_calls:  # only the last one can have any
        return last.model_copy(update={"content": content})
    return Message(role=last.role, content=content)


def _is_blank(message: Message) -> bool:
    return not message.content or message.content.isspace()


@lru_cache(maxsize=1 << 14)
def short_id(call_id: str) -> str:
    """Return an id of nine letters and digits for that of a call, always the same."""
    if len(call_id) == SHORT_ID and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:SHORT_ID]


@lru_cache(maxsize=1 << 12)
def portable_name(name: str) -> str:
    """Return a name for a tool that every server takes: its own, or one with a hash, as two must not become one."""
    if len(name) <= _LONGEST_NAME and name and not _ODD.search(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASHED]
    return f"{_ODD.sub('_', name)[: _LONGEST_NAME - _HASHED - 1]}_{digest}"


def portable_tools(tools: tuple[_Tool, ...]) -> tuple[tuple[_Tool, ...], Mapping[str, str]]:
    """Rename tools whose names some servers refuse. Also return the own names of those by their new ones."""
    names = {str(tool.get("function", tool).get("name")): tool for tool in tools}
    changed = {portable_name(name): name for name in names if portable_name(name) != name}
    return (tuple(map(_renamed_tool, tools)), changed) if changed else (tools, {})


def _renamed_tool(tool: _Tool) -> _Tool:
    function = tool.get("function")
    if function is None:
        return tool | {"name": portable_name(str(tool.get("name")))}
    return tool | {"function": function | {"name": portable_name(str(function.get("name")))}}


def calls_as_text(messages: Iterable[Message]) -> list[Message]:
    """Write calls into the contents of their messages."""
    return [_with_calls_as_text(message) if message.tool_calls else message for message in messages]


def _as_text(message: Message) -> Message:
    if message.role == "tool":
        return _result_as_user(message)
    return _with_calls_as_text(message) if message.tool_calls else message


def _with_calls_as_text(message: Message) -> Message:
    content = "\n".join(filter(None, [message.content, *map(_tagged, message.tool_calls)]))
    return message.model_copy(update={"content": content, "tool_calls": ()})


def results_as_user(messages: Iterable[Message]) -> list[Message]:
    """Move tool results into a user message, merged with the user messages before or after them.

    Templates without a role for tools often require alternating turns.
    """
    result: list[Message] = []
    after_result = False
    for message in messages:
        is_result = message.role == "tool"
        entry = _result_as_user(message) if is_result else message
        if entry.role == "user" and (is_result or after_result) and result and result[-1].role == "user":
            result[-1] = result[-1].model_copy(update={"content": f"{result[-1].content}\n\n{entry.content}"})
        else:
            result.append(entry)
        after_result = is_result
    return result


def _result_as_user(message: Message) -> Message:
    of = f" of {message.name}" if message.name else ""
    return Message(role="user", content=f"<tool_response>\nResult{of}:\n{message.content}\n</tool_response>")


def _tagged(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"
