"""Replies that are no use as they are, and how the model is asked again. Pure: no I/O.

A reply that is cut off in words is gone on with, and the parts are joined. One that is cut off within a call cannot
be: half a call is no call, and what a model writes next would not continue it. Such a call is told as cut off, and
leaves the conversation with the next reply. So a conversation never has half a reply for long, and never as an answer.
A reply that is empty, or repeats itself, never comes into it.
"""

import re
from collections.abc import Sequence
from enum import Enum

from cfs.wire import Message
from cfs_agents.sentences import Language, sentences


class Fault(Enum):
    """What is wrong with a reply."""

    CUT_OFF = "cut off"
    MALFORMED = "malformed"
    EMPTY = "empty"
    REPEATED = "repeated"


MOST_FAULTS = {Fault.CUT_OFF: 4, Fault.MALFORMED: 3, Fault.EMPTY: 3, Fault.REPEATED: 2}
"""How many such replies in a row end the task as failed; after each before that the model is asked again."""

REASONS = {
    Fault.CUT_OFF: "the model's reply was cut off at its limit of tokens {} times in a row:"
    " allow longer replies, or ask for less at once; what was done is kept",
    Fault.MALFORMED: "the model called tools in a way that cannot be carried out {} times in a row",
    Fault.EMPTY: "the model said nothing, and called nothing, {} times in a row",
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
    """Ask again after a reply that was no use, or for the rest of one that was cut off, with which the messages end."""
    say = sentences(language)
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
    """Put the parts of a reply together; of a call that was cut off nothing remains."""
    begun = _call_begins(part.content)
    said = part.content if begun is None else part.content[:begun].rstrip()
    thought = (part.thinking or "") + (rest.thinking or "")
    return rest.model_copy(update={"content": _together(said, rest.content), "thinking": thought or None})


def _call_begins(text: str) -> int | None:
    """Find where the call begins in whose middle a text ends."""
    if _BARE_CALL.match(text):
        return 0
    begun = _CALL.search(text)
    return begun.start() if begun else None


def _together(said: str, rest: str) -> str:
    """Join two parts. Servers take white space off the ends of replies, so between two words it is put back."""
    apart = said and rest and _WORD.match(said[-1]) and _WORD.match(rest[0]) and rest[0].isalnum()
    return f"{said} {rest}" if apart else said + rest
