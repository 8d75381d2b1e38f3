"""From a finished completion to a reply: its message, its usage, and its broken calls. No I/O.

A server that cannot read a call passes it on as text. That is not an answer but a broken call.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

from cfs.completions import UNREADABLE, ChatCompletion, ChatToolCall, read_arguments
from cfs.wire import ToolCall
from cfs_agents.loop.model import CompleteResponse

_SHOWN = 200
"""Characters of unreadable arguments that are said back to the model, of each end half."""

_MARK = re.compile(r"(?<![`'\"])(?:<tool_call>|\[TOOL_CALLS\]|\[CALL:|<\|python_tag\|>|<function=)(?![`'\"])")
_BARE = re.compile(r'\A\s*(?:```(?:json|tool_calls?)?\s*)?\[?\s*(?=\{\s*"(?:name|function|type|id)")')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"|<function=([\w.-]{1,64})|\[CALL:\s*([\w.-]{1,64})')
_NAMELESS = "unknown"


def reply_of(completion: ChatCompletion) -> CompleteResponse:
    """Read a completion. Calls without a unique id get a new one."""
    choice = completion.choices[0]
    calls = tuple(_told_apart(choice.message.tool_calls or ()))
    message = choice.message.model_copy(update={"tool_calls": calls}).message()
    cut_off = choice.finish_reason == "length"
    faults = {call.id: fault_of(call.function.name, call.function.arguments, cut_off=cut_off) for call in calls}
    recorded = completion.cfs.finish_reason if completion.cfs else None
    return CompleteResponse(
        message=message,
        finish_reason=recorded or choice.finish_reason,
        usage=completion.usage.usage(),
        broken={call: fault for call, fault in faults.items() if fault is not None},
    )


def fault_of(name: str, text: str, *, cut_off: bool) -> str | None:
    """Return, for the model, why a call with these arguments cannot run; None if it can."""
    if not name:
        return "the call names no tool"
    if read_arguments(text).keys() != {UNREADABLE} and (text.strip() or not cut_off):
        return None
    if cut_off:
        return (
            f"the call is cut off, as the reply reached its limit of tokens: write less at once. It was: {_short(text)}"
        )
    return f"the arguments are no JSON object: {_problem(text)}. They were: {_short(text)}"


def with_calls_in_text(reply: CompleteResponse, names: Collection[str]) -> CompleteResponse:
    """If a reply holds a call as text, return it with a broken call instead; `names` are those of the tools.

    A text that only mentions calls has their marks between quotes or backticks. Without a mark, it is a call only if it
    names a tool.
    """
    text = reply.message.content
    begun = _MARK.search(text) or _BARE.match(text)
    if begun is None or not names:
        return reply
    content, call = text[: begun.start()].rstrip(), text[begun.start() :].strip()
    match = _NAME.search(call)
    name = (
        next(filter(None, match.groups()), "")
        if match
        else next((candidate for candidate in names if candidate in call), "")
    )
    if begun.re is _BARE and name not in names:
        return reply
    tool_call = ToolCall(id=f"call_{uuid4().hex[:16]}", name=name or _NAMELESS, arguments={UNREADABLE: call})
    message = reply.message.model_copy(
        update={"content": content, "tool_calls": (*reply.message.tool_calls, tool_call)}
    )
    fault = f"the call cannot be read: {_problem_of_call(call[begun.end() - begun.start() :])}. It was: {_short(call)}"
    return replace(reply, message=message, broken={**reply.broken, tool_call.id: fault})


def _problem_of_call(text: str) -> str:
    """Return what is wrong with a call, given the text after its mark."""
    text = text.lstrip()
    if not text.startswith(("{", "[")):
        return "it has not the form of a call"
    try:
        json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {error}"
    return "it stands in the text, where it is none"


def _problem(text: str) -> str:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        return str(error)
    if isinstance(value, dict):
        return "they hold a number or a character that JSON does not have"
    return f"this is a {type(value).__name__}"


def _short(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def _told_apart(calls: Sequence[ChatToolCall]) -> Iterator[ChatToolCall]:
    seen: set[str] = set()
    for call in calls:
        if not call.id or call.id in seen:
            call = call.model_copy(update={"id": f"call_{uuid4().hex[:16]}"})
        seen.add(call.id)
        yield call
