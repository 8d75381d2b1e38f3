"""The `context` of `/api/generate`. It holds the conversation itself, so the server stores nothing for it."""

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from cfs.wire import Message
from cfs_server.completions.requests import refusal

_MESSAGES = TypeAdapter(tuple[Message, ...])


_BYTES = 3
"""Bytes in each number."""


def write_context(messages: Sequence[Message]) -> list[int]:
    """Write a conversation as numbers that clients send back unread."""
    data = _MESSAGES.dump_json(tuple(messages), exclude_defaults=True)
    data += b" " * (-len(data) % _BYTES)
    return [int.from_bytes(data[at : at + _BYTES]) for at in range(0, len(data), _BYTES)]


def read_context(numbers: Sequence[int]) -> tuple[Message, ...]:
    """Read the conversation in a context. Raises `InvalidParameters` for numbers that this server did not make."""
    if not numbers:
        return ()
    try:
        return _MESSAGES.validate_json(b"".join(number.to_bytes(_BYTES) for number in numbers), strict=True)
    except ValidationError:
        raise refusal("context", "it is not the context of an answer of this server") from None
