"""Which messages the worker holds already, so that a turn sends only what is new.

The server decides alone. For the life of one worker it remembers what it has sent for each key, and says with each turn
how many of those messages stay (`Generate.keep`), and when a history is to be dropped (`DropHistory`, `Forget`). A long
history comes in several parts (`History`). The worker does as it is told, frame by frame, and has no bound of its own;
so it holds what the server believes that it holds. A new worker holds nothing, and the server, which then begins a new
book, sends everything again.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from cfs.errors import EngineError
from cfs.wire import Message
from cfs_server.engine.frames import DropHistory, Generate, History, encode
from cfs_server.engine.interface import GenerationRequest

CHARACTERS = 32 << 20
"""Text that the worker holds of all histories together; the least recently used go first, and may be sent again."""
PART_CHARACTERS = 1 << 20
"""Text that is sent at once: some milliseconds of the event loop, but for a message that is longer by itself."""
_MESSAGE_CHARACTERS = 500
"""What a message takes beside its text."""


class SentHistories:
    """The server's book of one worker: the messages that it holds. They are the sessions' own, so this copies none."""

    def __init__(self, limit: int = CHARACTERS) -> None:
        self._limit = limit
        self._sent: OrderedDict[str, tuple[Message, ...]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._size = 0

    def order(self, request: GenerationRequest, waited: float = 0.0) -> tuple[bytes, bool]:
        """Write a turn down for the worker, which must be sent it; `waited` are seconds since it came.

        A long history comes in parts: until the turn itself was written (the second value), this is to be called again,
        and no other turn of the key may come between. Raises `EngineError` for what is no JSON; then nothing has
        changed.
        """
        key, messages = request.cache_key, request.messages
        before = self._sent.get(key, ())
        keep = _agreement(before, messages)
        end = _part(messages, keep)
        whole = end == len(messages)
        turn = _encode_request(request, keep, waited) if whole else _encode_part(key, keep, messages[keep:end])
        new = sum(map(_characters, messages[keep:end]))
        old = self._sizes.get(key, 0) if keep == len(before) else sum(map(_characters, messages[:keep]))
        self.forget(key)
        self._sent[key], self._sizes[key] = messages[:end], old + new
        self._size += old + new
        return self._drop_oldest() + turn, whole

    def forget(self, key: str) -> None:
        """Strike a history out: the worker is told to forget the key."""
        if self._sent.pop(key, None) is not None:
            self._size -= self._sizes.pop(key)

    def check_integrity(self) -> list[str]:
        """Compare the sizes with the messages; every line is a violation."""
        sizes = {key: sum(map(_characters, messages)) for key, messages in self._sent.items()}
        return [] if (sizes, sum(sizes.values())) == (self._sizes, self._size) else ["histories and their sizes differ"]

    def _drop_oldest(self) -> bytes:
        orders = b""
        while self._size > self._limit and len(self._sent) > 1:
            oldest = next(iter(self._sent))
            self.forget(oldest)
            orders += encode(DropHistory(oldest))
        return orders


class KnownHistories:
    """The worker's side: each history as the server sent it, validated once."""

    def __init__(self) -> None:
        self._known: dict[str, list[Message]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def take(self, order: Generate | History) -> Sequence[Message]:
        """Bring a history up to date and return it; it changes with the key's next turn.

        Raises `ValueError` when the server keeps what is not here: one of the two has a defect, and must start again.
        """
        known = self._known.setdefault(order.cache_key, [])
        if order.keep > len(known):
            raise ValueError(f"{order.keep} messages are to be kept of a history of {len(known)}")
        known[order.keep :] = [Message.model_validate(message) for message in order.messages]
        return known

    def drop(self, key: str) -> None:
        """Drop a history."""
        self._known.pop(key, None)


def _encode_request(request: GenerationRequest, keep: int, waited: float) -> bytes:
    return _json(
        Generate(
            id=request.id,
            cache_key=request.cache_key,
            keep=keep,
            messages=[_plain_message(message) for message in request.messages[keep:]],
            settings=request.settings.model_dump(mode="json"),
            json_schema=request.json_schema,
            tools=list(request.tools),
            owner=request.owner,
            account=request.account or request.cache_key,
            kind=request.kind,
            logprobs=request.logprobs,
            deadline_seconds=request.deadline_seconds,
            waited_seconds=waited,
            may_shorten=request.may_shorten,
        )
    )


def _encode_part(key: str, keep: int, messages: Sequence[Message]) -> bytes:
    return _json(History(key, keep, [_plain_message(message) for message in messages]))


def _json(frame: Generate | History) -> bytes:
    try:
        return encode(frame)
    except (TypeError, ValueError, RecursionError) as error:
        raise EngineError(f"the request is no JSON: {error}") from error


def _part(messages: Sequence[Message], begin: int) -> int:
    """Say up to where messages are sent at once."""
    room = PART_CHARACTERS
    for index in range(begin, len(messages)):
        room -= _characters(messages[index])
        if room < 0:
            return max(index, begin + 1)
    return len(messages)


def _agreement(before: Sequence[Message], messages: Sequence[Message]) -> int:
    """Count the messages that two histories begin with alike."""
    count = 0
    for old, new in zip(before, messages, strict=False):
        if old is not new and not _same(old, new):
            break
        count += 1
    return count


def _same(old: Message, new: Message) -> bool:
    """Whether the worker could not tell two messages apart.

    To be equal is not enough for arguments: 1 equals True, and keys have an order that a template writes down.
    """
    return old == new and (not new.tool_calls or json.dumps(_plain_message(old)) == json.dumps(_plain_message(new)))


def _plain_message(message: Message) -> dict[str, Any]:
    return message.model_dump(mode="json", exclude_defaults=True)


def _characters(message: Message) -> int:
    calls = len(json.dumps(_plain_message(message)["tool_calls"])) if message.tool_calls else 0
    return _MESSAGE_CHARACTERS + len(message.content) + len(message.thinking or "") + calls
