"""Replies that were cut off at their limit of tokens, and how the rest of them is come by. Pure: no I/O.

A reply that is cut off in words is gone on with, and the parts are joined. One that is cut off within a call cannot
be: half a call is no call, and what a model writes next would not continue it. Such a call is told as cut off, and
leaves the conversation with the next reply. So a conversation never has half a reply for long, and never as an answer.
"""

import re
from collections.abc import Sequence

from cfs.wire import Message
from cfs_agents.sentences import Language, sentences

MOST_CUTS = 4
"""How often in a row a reply may be cut off before the task fails."""

_CALL = re.compile(r"<tool_call>(?!.*</tool_call>)|\[TOOL_CALLS\]|\[CALL:|<\|python_tag\|>", re.DOTALL)
_BARE_CALL = re.compile(r'\A\s*\[?\s*\{\s*"(?:name|function|type)"')
_WORD = re.compile(r"[!-~]")


def asking(messages: Sequence[Message], language: Language) -> list[Message]:
    """Ask for the rest of the reply that these messages end with."""
    say = sentences(language)
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
