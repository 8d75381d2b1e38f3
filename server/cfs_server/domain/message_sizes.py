"""The limits and sizes of messages: bytes of a write, and memory."""

import sys
from collections.abc import Mapping
from typing import Any

from cfs.contract.transcript import BOM, PREFIXES
from cfs.errors import TooLarge, UnsupportedMedia
from cfs.wire import Message


def decode_message(data: bytes, *, limit: int) -> str | None:
    """Decode bytes as one user message: strict UTF-8, without one final newline and a leading `User: `.

    Returns None if there is only white space: an empty write has no effect. Raises `TooLarge` for more than `limit`
    bytes and `UnsupportedMedia` for bytes that are not UTF-8.
    """
    require_message_size(len(data), limit)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"a message must be UTF-8: {error.reason} at byte {error.start}") from None
    text = text.removeprefix(BOM).removesuffix("\n").removeprefix(PREFIXES["user"])
    return text if text.strip() else None


def check_content(content: str, *, limit: int) -> str:
    """Validate the content of a structured message. It is used unchanged."""
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        raise UnsupportedMedia("the content holds a lone surrogate, which is no text in UTF-8") from None
    require_message_size(size, limit)
    return content


def require_message_size(size: int, limit: int) -> None:
    """Raise `TooLarge` for a message of more than `limit` bytes."""
    if size > limit:
        raise TooLarge(f"a message has {limit} bytes at most; this one has {size}")


MESSAGE_COST = 640
"""Measured memory of a message in bytes without its texts: the object, its fields, its place in a list."""


_CALL_COST = 720


_VALUE_COST = 64
"""Memory in bytes of a tool call, and of each value in its arguments."""


def cost_of(message: Message) -> int:
    """Return the memory of a message in bytes."""
    cost = MESSAGE_COST + cost_of_value(message.content)
    if message.thinking is not None:
        cost += cost_of_value(message.thinking)
    for call in message.tool_calls:
        cost += _CALL_COST + len(call.id) + len(call.name) + cost_of_value(call.arguments)
    return cost


def cost_of_value(value: Any) -> int:
    """Return the memory of a JSON value in bytes. Equal values have equal costs."""
    if isinstance(value, str):
        return sys.getsizeof(value if value.isascii() else value + " ")  # a copy, without a cached UTF-8 form
    if isinstance(value, Mapping):
        return _VALUE_COST + sum(_VALUE_COST + cost_of_value(key) + cost_of_value(value[key]) for key in value)
    if isinstance(value, list | tuple):
        return _VALUE_COST + sum(map(cost_of_value, value))
    return _VALUE_COST
