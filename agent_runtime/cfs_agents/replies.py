"""From a finished completion to a reply: its message, its cost, and which of its calls cannot be made. Pure: no I/O."""

import json
from collections.abc import Iterator, Sequence
from uuid import uuid4

from cfs.completions import UNREADABLE, ChatCompletion, ChatToolCall, CompletionUsage, read_arguments
from cfs.wire import Usage
from cfs_agents.llm import Reply

_SHOWN = 200
"""Characters of unreadable arguments that are said back to the model, of each end half."""


def reply_of(completion: ChatCompletion) -> Reply:
    """Read a completion. Calls get ids where they have none, or one that another call of the reply has."""
    choice = completion.choices[0]
    said = tuple(_told_apart(choice.message.tool_calls or ()))
    message = choice.message.model_copy(update={"tool_calls": said}).message()
    cut_off = choice.finish_reason == "length"
    faults = {call.id: fault_of(call.function.name, call.function.arguments, cut_off=cut_off) for call in said}
    recorded = completion.cfs.finish_reason if completion.cfs else None
    return Reply(
        message=message,
        finish_reason=recorded or choice.finish_reason,
        usage=_usage(completion.usage),
        broken={call: fault for call, fault in faults.items() if fault is not None},
    )


def fault_of(name: str, text: str, *, cut_off: bool) -> str | None:
    """Say, for the model, why a call with these arguments cannot be made; None when it can."""
    if not name:
        return "the call names no tool"
    if read_arguments(text).keys() != {UNREADABLE}:
        return None
    if cut_off:
        return (
            f"the call is cut off, as the reply reached its limit of tokens: write less at once. It was: {_short(text)}"
        )
    return f"the arguments are no JSON object: {_problem(text)}. They were: {_short(text)}"


def _problem(text: str) -> str:
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        return str(error)
    if isinstance(found, dict):
        return "they hold a number or a character that JSON does not have"
    return f"this is a {type(found).__name__}"


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


def _usage(usage: CompletionUsage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )
