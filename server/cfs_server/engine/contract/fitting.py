"""Selects the part of a conversation that fits into a prompt (S8). Pure: no tokenizer, no I/O.

It removes whole exchanges, the oldest first. An exchange is a user's message with all messages up to the next one, so
tool calls and their results stay together. The system messages at the beginning always stay.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from cfs.contract.transcript import render_one
from cfs.errors import ContextTooLong
from cfs.wire import Message

TARGET = 0.75
"""How full a prompt is after a cut. The room left lets the next turns reuse the computed beginning."""
LONGEST_UNKNOWN = 16
"""Characters of a token at most, for models whose vocabulary is not known here; means over real texts are 3 to 5."""
TOKEN_CHARACTERS = 4
"""Characters of a token in estimates."""
MESSAGE_TOKENS = 8
"""Estimated tokens of a message beside its text; a wrong estimate only moves the cut."""
_THOUGHT = "</think>"


def leading_systems(messages: Sequence[Message]) -> int:
    """Count the system messages that a history begins with."""
    return next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))


def exchanges(messages: Sequence[Message], begin: int) -> list[int]:
    """Return the indexes at which exchanges begin, from the index where the first begins."""
    starts = [index for index in range(begin, len(messages)) if messages[index].role == "user"]
    return starts if starts[:1] == [begin] or begin >= len(messages) else [begin, *starts]


def least_tokens(messages: Iterable[Message], longest: int) -> int:
    """Return a lower bound of the tokens of a prompt, when no token has more characters than `longest`.

    Templates may leave out white space around a content, and a model's thinking.
    """
    total = 0
    for message in messages:
        text = message.content
        if message.role == "assistant" and _THOUGHT in text:
            text = text.rpartition(_THOUGHT)[2]
        total += 1 + len(text.strip()) // longest
    return total


def estimated_tokens(messages: Iterable[Message]) -> int:
    """Estimate the tokens of messages for a model whose vocabulary is not known here."""
    total = 0
    for message in messages:
        size = len(message.content) + sum(len(str(call.arguments)) for call in message.tool_calls)
        total += MESSAGE_TOKENS + size // TOKEN_CHARACTERS
    return total


def count_within(messages: Sequence[Message], tokens: int) -> int:
    """Count the newest exchanges that have so many tokens by estimate; the last one counts in any case."""
    head = leading_systems(messages)
    starts = exchanges(messages, head)
    room, end, fits = tokens - estimated_tokens(messages[:head]), len(messages), 0
    for start in reversed(starts):
        room -= estimated_tokens(messages[start:end])
        if room < 0:
            break
        fits, end = fits + 1, start
    return max(1, min(fits, len(starts) - 1))


def count_of_part(messages: Sequence[Message], starts: Sequence[int], part: float) -> int:
    """Count the newest exchanges, which begin at `starts`, that have this part of their whole text."""
    sizes = [
        sum(len(message.content) for message in messages[start:end])
        for start, end in pairwise([*starts, len(messages)])
    ]
    room = part * sum(sizes)
    return sum(size <= room for size in accumulate(reversed(sizes)))


def check_bound(messages: Sequence[Message], system: str | None, context_tokens: int, longest: int) -> None:
    """Raise `ContextTooLong` for messages that cannot fit, before they are sent, rendered or tokenized.

    Messages are counted from the end until the context is full.
    """
    head = leading_systems(messages)
    room = context_tokens - len(system or "") // longest - least_tokens(messages[:head], longest)
    above = (1 - TARGET) * room
    fits, begin = 0, len(messages)
    for index in range(len(messages) - 1, head - 1, -1):
        room -= least_tokens((messages[index],), longest)
        if room < 0:
            break
        if messages[index].role == "user" and (not fits or room >= above):
            fits, begin = fits + 1, index
    if room < 0:
        leaving = sum(len(message.content) for message in messages[head:begin]) // 4
        detail = f"the prompt takes far more than {context_tokens} tokens; the model's context holds {context_tokens}"
        raise ContextTooLong(detail, fits=fits, leaving=leaving)


def count_fitting(
    messages: Sequence[Message],
    *,
    limit: int,
    max_last: int,
    whole: Callable[[Sequence[Message]], int],
    count: Callable[[str], int],
) -> int:
    """Count the newest exchanges that a prompt holds when it is filled to `TARGET` of `limit` tokens.

    `whole` counts a prompt and `count` a text. The last exchange may take up to `max_last` tokens; 0 if more.
    """
    head = leading_systems(messages)
    starts = exchanges(messages, head)
    if not starts:
        return 0
    total = whole((*messages[:head], *messages[starts[-1] :]))
    if total > max_last:
        return 0
    fits, end = 1, starts[-1]
    for start in reversed(starts[:-1]):
        for message in messages[start:end]:
            total += MESSAGE_TOKENS + count(render_one(message))
            if total > TARGET * limit:
                return fits
        fits, end = fits + 1, start
    return max(1, min(fits, len(starts) - 1))
