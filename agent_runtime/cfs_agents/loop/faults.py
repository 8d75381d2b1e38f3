"""Useless replies, and how the model is asked again. No I/O.

A reply that is truncated in words is continued, and the parts are joined. One that is truncated within a call cannot be
continued: the model is told so, and the partial call leaves the conversation with the next reply. So a truncated reply
never stays in a conversation and never counts as an answer. A reply that is empty or repeats itself never enters the
conversation.
"""

import re
from collections.abc import Sequence
from enum import Enum

from cfs.wire import Message
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.loop.model import CompleteResponse
from cfs_agents.loop.repetition import ends_repeating
from cfs_agents.tools import Registry


class Fault(Enum):
    """What is wrong with a reply."""

    CUT_OFF = "cut off"
    MALFORMED = "malformed"
    EMPTY = "empty"
    REPEATED = "repeated"


MOST_FAULTS = {Fault.CUT_OFF: 4, Fault.MALFORMED: 3, Fault.EMPTY: 3, Fault.REPEATED: 2}
"""How many such replies in a row end the task as failed. Before that the model is asked again each time."""

REASONS = {
    Fault.CUT_OFF: "the model's reply was cut off at its limit of tokens {} times in a row:"
    " allow longer replies, or ask for less at once; what was done is kept",
    Fault.MALFORMED: "the model called tools in a way that cannot be carried out {} times in a row",
    Fault.EMPTY: "the model's reply was empty {} times in a row",
    Fault.REPEATED: "the model's reply repeated itself and was stopped, {} times in a row",
}

WARNINGS = {
    Fault.CUT_OFF: "the reply was cut off at its limit of tokens; the model is asked for the rest",
    Fault.EMPTY: "the reply was empty; the model is asked again",
    Fault.REPEATED: "the reply repeated itself and was stopped; the model is asked again",
}

_CALL = re.compile(r"<tool_call>(?!.*</tool_call>)|\[TOOL_CALLS\]|\[CALL:|<\|python_tag\|>", re.DOTALL)
_BARE_CALL = re.compile(r'\A\s*\[?\s*\{\s*"(?:name|function|type)"')
_WORD = re.compile(r"[!-~]")


def asking(messages: Sequence[Message], fault: Fault, language: Language) -> list[Message]:
    """Return the messages with a note that asks again, or for the rest of the truncated reply at their end."""
    say = catalogue(language)
    if fault is not Fault.CUT_OFF:
        note = say.empty if fault is Fault.EMPTY else say.repeated
        return [*messages, Message(role="user", content=note)]
    *before, part = messages
    if not part.content.strip():
        note = say.think_less
    elif _call_begins(part.content) is not None:
        before, note = [*before, part], say.shorter_call
    else:
        before, note = [*before, part], say.cut_off
    return [*before, Message(role="user", content=note)]


def joined(part: Message, rest: Message) -> Message:
    """Join the parts of a reply; a truncated call is dropped."""
    begun = _call_begins(part.content)
    head = part.content if begun is None else part.content[:begun].rstrip()
    thought = (part.thinking or "") + (rest.thinking or "")
    return rest.model_copy(update={"content": _together(head, rest.content), "thinking": thought or None})


def _call_begins(text: str) -> int | None:
    """Return where the truncated call at the end of a text begins."""
    if _BARE_CALL.match(text):
        return 0
    begun = _CALL.search(text)
    return begun.start() if begun else None


def _together(head: str, rest: str) -> str:
    """Join two parts. Servers strip white space from replies, so a space is added between two words."""
    apart = head and rest and _WORD.match(head[-1]) and _WORD.match(rest[0]) and rest[0].isalnum()
    return f"{head} {rest}" if apart else head + rest


def fault_in(reply: CompleteResponse, message: Message, tools: Registry) -> Fault | None:
    """Return what is wrong with a reply; `message` is the whole of it, including the parts before."""
    calls = reply.message.tool_calls
    if reply.finish_reason == "length":
        repeats = not calls and (ends_repeating(message.content) or ends_repeating(message.thinking or ""))
        return Fault.REPEATED if repeats else Fault.CUT_OFF
    if not calls:
        return None if reply.message.content.strip() else Fault.EMPTY
    return Fault.MALFORMED if all(call.id in reply.broken or call.name not in tools for call in calls) else None
