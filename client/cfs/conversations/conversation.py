"""A conversation of another program as messages of CFS, and what of it has no place there."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from cfs.contract.wire import Message, ToolCall

_MAX_CALL_ID = 256

IMAGE = "[image]"
"""Stands in a message for a picture, which CFS does not store."""


class LenientModel(BaseModel):
    """A part of another program's file. Members that are not known are ignored: the programs change often."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that could not be read, counted from 1, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """The messages of one session of another program, with the time of each in seconds since 1970.

    `id` is the program's own, and `parent` that of the session that has started this one as a sub-agent. `tokens` are
    those that the model has read and written. `lost` counts what has no place in messages, by its name.
    """

    id: str
    messages: tuple[Message, ...]
    times: tuple[float, ...] = ()
    title: str | None = None
    parent: str | None = None
    system: str | None = None
    folder: str | None = None
    tokens: int = 0
    models: tuple[str, ...] = ()
    lost: Mapping[str, int] = field(default_factory=Counter)
    damage: tuple[Damage, ...] = ()


class Builder:
    """Puts a conversation together, message by message. Pieces of one reply become one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.times: list[float] = []
        self.lost: Counter[str] = Counter()
        self.models: dict[str, None] = {}
        self.tokens = 0
        self._tools: dict[str | None, str] = {}

    def add(self, message: Message, at: float) -> None:
        """Append a message. A time before that of the last message is taken as the same."""
        if message.tool_call_id is not None:
            message = message.model_copy(update={"tool_call_id": _short(message.tool_call_id)})
        self.messages.append(message)
        self.times.append(max([at, *self.times[-1:]]))

    def add_result(self, at: float, call_id: str | None, content: str, name: str | None = None) -> None:
        """Append the result of a call. Without a name it has that of the call."""
        self.add(Message(role="tool", content=content, tool_call_id=call_id, name=name or self._tools.get(call_id)), at)

    def extend_reply(self, at: float, content: str = "", thinking: str = "", calls: Sequence[ToolCall] = ()) -> None:
        """Continue the reply that is the last message, or begin one."""
        self._tools |= {call.id: call.name for call in calls}
        if not self.messages or self.messages[-1].role != "assistant":
            self.add(Message(role="assistant", content=""), at)
        last = self.messages[-1]
        self.messages[-1] = Message(
            role="assistant",
            content=_joined(last.content, content),
            thinking=_joined(last.thinking or "", thinking) or None,
            tool_calls=(*last.tool_calls, *(call.model_copy(update={"id": _short(call.id)}) for call in calls)),
        )

    def cut(self, count: int) -> None:
        """Keep only the first messages."""
        del self.messages[count:]
        del self.times[count:]

    def build(self, id: str, **more: Any) -> ImportedConversation:  # noqa: A002 - the name of the field
        """Return the conversation, without messages that have nothing in them."""
        pairs = [pair for pair in zip(self.messages, self.times, strict=True) if not _is_empty(pair[0])]
        return ImportedConversation(
            id,
            tuple(message for message, _ in pairs),
            tuple(time for _, time in pairs),
            tokens=self.tokens,
            models=tuple(self.models),
            lost=self.lost,
            **more,
        )


def _short(call_id: str) -> str:
    """Return the id of a call in the length that the server takes: some providers make very long ones."""
    return call_id if len(call_id) <= _MAX_CALL_ID else hashlib.sha256(call_id.encode()).hexdigest()


def _is_empty(message: Message) -> bool:
    """Return whether the server would store nothing for a message."""
    return not (message.content.strip() or message.thinking or message.tool_calls or message.tool_call_id)


def loads(text: str) -> Any:
    """Parse JSON. Lone surrogates in it, which have no UTF-8, become question marks."""
    value = json.loads(text)
    return _clean(value) if "\\ud" in text.lower() else value


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _joined(first: str, second: str) -> str:
    return "\n\n".join(filter(None, (first, second)))


def failed(text: str) -> str:
    """Write the result of a call that failed. A message has no mark for an error, so its text says it."""
    return text if "error" in text[:80].lower() else f"Error: {text}"


def seconds(time: str | float | None) -> float:
    """Return a time in seconds since 1970: an ISO 8601 text, or a number of milliseconds."""
    if isinstance(time, str):
        try:
            return datetime.fromisoformat(time).timestamp()
        except ValueError:
            return 0.0
    return (time or 0.0) / 1000


def iso(time: float) -> str:
    """Write a time as the programs do."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a call that are JSON; any other text becomes the argument `input`."""
    try:
        value = loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"input": text}


def json_lines(text: str, damage: list[Damage]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines with their line numbers, and note the lines that are none."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = loads(line)
        except (ValueError, RecursionError):
            damage.append(Damage(number, "is not JSON"))
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            damage.append(Damage(number, "is no object"))


def reason_of(error: ValidationError) -> str:
    """Return in a few words what is wrong with an entry."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"


def path_to_last(links: Sequence[tuple[str, str | None]]) -> set[int]:
    """Return the positions from a root to the last entry of a tree, whose entries have an id and that of a parent.

    The parent of an entry without an id, or with an unknown parent, is the entry before it.
    """
    positions: dict[str, int] = {}
    parents: list[int] = []
    for index, (name, parent) in enumerate(links):
        is_root = bool(name) and not parent
        parents.append(-1 if is_root else positions.get(parent or "", index - 1))
        if name:
            positions[name] = index
    path: set[int] = set()
    index = len(links) - 1
    while index >= 0:
        path.add(index)
        index = parents[index]
    return path
