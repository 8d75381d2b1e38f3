"""Replies that were cut off at their limit of tokens, and how the rest of them is come by. Pure: no I/O.

A reply that is cut off in words is gone on with, and the parts are joined. One that is cut off within a call cannot
be: half a call is no call, and what a model writes next would not continue it. Such a call is told as cut off, and
leaves the conversation with the next reply. So a conversation never has half a reply for long, and never as an answer.
"""

import re
from collections.abc import Sequence
from typing import Literal

from cfs.wire import Message

MOST_CUTS = 4
"""How often in a row a reply may be cut off before the task fails."""

_CALL = re.compile(r"<tool_call>(?!.*</tool_call>)|\[TOOL_CALLS\]|\[CALL:|<\|python_tag\|>", re.DOTALL)
_BARE_CALL = re.compile(r'\A\s*\[?\s*\{\s*"(?:name|function|type)"')
_WORD = re.compile(r"[!-~]")

_GO_ON = {
    "en": "[Your reply was cut off at its limit of length. Go on exactly where it stopped, and repeat nothing.]",
    "zh": "[你的回复达到长度上限，被截断了。请从停下的地方继续写，不要重复。]",
}
_THINK_LESS = {
    "en": "[Your reply was cut off at its limit of length before it said anything. Think less, and answer.]",
    "zh": "[你的回复达到长度上限，还没有说出任何内容就被截断了。请少想一些，直接回答。]",
}
_SHORTER_CALL = {
    "en": "[Your reply was cut off at its limit of length in the middle of a call, which was not run. Make the call"
    " again, and shorter: write a long file in several parts.]",
    "zh": "[你的回复在一次调用的中间达到长度上限，被截断了，调用没有执行。"
    "请重新调用，并写得短一些：长文件请分几次写。]",
}


def asking(messages: Sequence[Message], language: Literal["en", "zh"]) -> list[Message]:
    """Ask for the rest of the reply that these messages end with."""
    *before, part = messages
    if not part.content.strip():
        note = _THINK_LESS
    elif _call_begins(part.content) is not None:
        before, note = [*before, part], _SHORTER_CALL
    else:
        before, note = [*before, part], _GO_ON
    return [*before, Message(role="user", content=note[language])]


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
