"""A conversation as an immutable list of items: their types and states, token counts, and changes between two versions.

A tool's call and its result always stay together.
"""

import hashlib
import json
import os
import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import takewhile
from operator import attrgetter, is_
from typing import Any, Literal, Protocol, Self

from cfs.errors import CfsError, Conflict, InvalidParameters
from cfs.wire import Message, Role, ToolCall

# -- counting tokens --------------------------------------------------------------------------------------------------


class TokenCounter(Protocol):
    """Counts the tokens of texts, with the model's tokenizer or through a server."""

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, in their order."""
        ...


def estimate(text: str) -> int:
    """Estimate the tokens of a text: four ASCII characters are one token, any other character is one token.

    This is accurate for English prose. It is up to twice too high for other languages, and half of the true number for
    code in rare notations, hexadecimal digits and base64.
    """
    ascii_characters = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return -(-ascii_characters // 4) + len(text) - ascii_characters


class EstimatingCounter:
    """Estimates without a tokenizer (see `estimate`)."""

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return an estimate for each text."""
        return [estimate(text) for text in texts]


class CachedCounter:
    """An LRU cache of another counter's results for `size` texts. All new texts go to the counter in one call.

    The keys are hashes of the texts. If the counter raises a `CfsError` (for example, an unreachable server), the
    result is an estimate, which is not cached.
    """

    def __init__(self, counter: TokenCounter, *, size: int = 10_000) -> None:
        self._counter = counter
        self._size = size
        self._known: OrderedDict[bytes, int] = OrderedDict()

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, in their order."""
        keys = [_hash(text) for text in texts]
        counts = {key: self._known[key] for key in keys if key in self._known}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in counts}
        if new:
            try:
                counted = dict(zip(new, await self._counter.count(list(new.values())), strict=True))
            except CfsError:
                return [counts[key] if key in counts else estimate(new[key]) for key in keys]
            counts |= counted
        self._remember(keys, counts)
        return [counts[key] for key in keys]

    def _remember(self, keys: Iterable[bytes], counts: dict[bytes, int]) -> None:
        for key in keys:
            self._known[key] = counts[key]
            self._known.move_to_end(key)
        while len(self._known) > self._size:
            self._known.popitem(last=False)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# -- items (O2) -------------------------------------------------------------------------------------------------------

ItemType = Literal[
    "tool_result", "user_message", "assistant_message", "skill_prompt", "compaction_summary", "system_prompt"
]

MESSAGE_TOKENS = 4
"""Approximate tokens that a template adds to each message: its role and its end."""

_USUAL: dict[Role, ItemType] = {
    "system": "system_prompt",
    "user": "user_message",
    "assistant": "assistant_message",
    "tool": "tool_result",
}
_ROLES: dict[ItemType, frozenset[Role]] = {
    "tool_result": frozenset({"tool"}),
    "user_message": frozenset({"user"}),
    "assistant_message": frozenset({"assistant"}),
    "skill_prompt": frozenset({"user", "system"}),
    "compaction_summary": frozenset({"user"}),
    "system_prompt": frozenset({"system"}),
}
_ids = random.Random()
os.register_at_fork(after_in_child=_ids.seed)
"""Ids must be unique, not secret; the system's random numbers would take 35 µs each."""


@dataclass(frozen=True, slots=True)
class ContextItem:
    """A message of a conversation as it is in the prompt now. A change creates a new item with the same `item_id`.

    - `tokens` is the size of the message in the prompt; None until it is counted.
    - `offloaded`: the content is on disk at `offload_path`, and the message, which says so too, holds a placeholder.
    - `destroyed`: the content was removed because there are newer outputs of the same ephemeral tool.
    - `protected`: the item is never changed or removed, like the first message of a task.
    - `pinned`: the item is not off-loaded, because its content was restored.
    - `stands_for` is the number of removed messages that this note replaces.
    - `seen`: a model has replied to the item.
    - `cut`: the reply is truncated at its limit of tokens; its continuation will replace it.
    """

    item_id: str
    item_type: ItemType
    message: Message
    tokens: int | None = None
    offloaded: bool = False
    offload_path: str | None = None
    destroyed: bool = False
    protected: bool = False
    pinned: bool = False
    stands_for: int = 0
    seen: bool = False
    cut: bool = False

    def __post_init__(self) -> None:
        """Let the message say where its content is."""
        if self.message.offload_path != self.offload_path:
            object.__setattr__(self, "message", self.message.offloaded_to(self.offload_path))

    @classmethod
    def of(
        cls, message: Message, item_type: ItemType | None = None, *, protected: bool = False, cut: bool = False
    ) -> Self:
        """Return an item with a new id. The default type depends on the message's role.

        Raises `InvalidParameters` for a type that a message of this role cannot have.
        """
        kind = item_type or _USUAL[message.role]
        if message.role not in _ROLES[kind]:
            raise InvalidParameters(f"a message of the role {message.role!r} cannot be a {kind}")
        return cls(f"item_{_ids.getrandbits(64):016x}", kind, message, protected=protected, cut=cut)

    @property
    def tool(self) -> str | None:
        """Name of the tool, if the item is the output of one."""
        return self.message.name if self.item_type == "tool_result" else None

    def with_content(self, content: str) -> Self:
        """Return the item with other content; its tokens must be counted again."""
        return replace(self, message=self.message.model_copy(update={"content": content}), tokens=None)

    def text(self) -> str:
        """Return all text of the message that a model reads, for counting."""
        return text_of(self.message)

    def dump(self) -> dict[str, Any]:
        """Return the item as plain JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "message"}
        return values | {"message": self.message.model_dump(mode="json", exclude_defaults=True)}

    @classmethod
    def load(cls, state: dict[str, Any]) -> Self:
        """Return the item from the JSON of `dump`."""
        return cls(**state | {"message": Message(**state["message"])})


def text_of(message: Message) -> str:
    """Return all text of a message that a model reads."""
    calls = [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in message.tool_calls]
    return "\n".join(part for part in (message.name, message.thinking, message.content, *calls) if part)


@dataclass(frozen=True, slots=True)
class Unit:
    """Items that stay or leave together: a single one, or an assistant's message with calls and their results."""

    items: tuple[ContextItem, ...]

    @property
    def kind(self) -> ItemType:
        """Type of the unit: `tool_result` for calls with results, else the type of its item."""
        return "tool_result" if self.items[0].message.tool_calls else self.items[0].item_type

    @property
    def tokens(self) -> int:
        """Size in the prompt."""
        return sum(map(cost, self.items))

    @property
    def unseen(self) -> bool:
        """Whether the model has not replied to all of the unit yet, or has not finished it."""
        return bool(self.open_calls) or any(
            not item.seen for item in self.items if item.cut or item.message.role != "assistant"
        )

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls without a result. Calls with the same id get their results in order."""
        waiting = list(self.items[0].message.tool_calls)
        for result in self.items[1:]:
            for call in waiting:
                if call.id == (result.message.tool_call_id or ""):
                    waiting.remove(call)
                    break
        return tuple(waiting)


@dataclass(frozen=True)
class Context:
    """An immutable conversation, as a model will see it. Each change returns a new one."""

    items: tuple[ContextItem, ...] = field(default=())

    def __iter__(self) -> Iterator[ContextItem]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._places

    def __getitem__(self, item_id: str) -> ContextItem:
        return self.items[self._places[item_id]]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {item.item_id: place for place, item in enumerate(self.items)}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The items in groups that stay or leave together, in order."""
        groups: list[list[ContextItem]] = []
        for item in self.items:
            if item.item_type == "tool_result" and groups:
                groups[-1].append(item)
            else:
                groups.append([item])
        return tuple(Unit(tuple(group)) for group in groups)

    @property
    def tokens(self) -> int:
        """Size of the prompt; items that are not counted yet are estimated."""
        return sum(map(cost, self.items))

    @cached_property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last message without a result."""
        first = len(self.items) - 1
        while first > 0 and self.items[first].item_type == "tool_result":
            first -= 1
        return Unit(self.items[first:]).open_calls if self.items and self.items[first].message.tool_calls else ()

    @property
    def cut_off(self) -> ContextItem | None:
        """The last item, if it is a truncated reply."""
        return self.items[-1] if self.items and self.items[-1].cut else None

    @cached_property
    def unseen(self) -> frozenset[str]:
        """Ids of all items of units that the model has not replied to yet."""
        return frozenset(item.item_id for unit in self.units if unit.unseen for item in unit.items)

    def call_of(self, result: ContextItem) -> ToolCall | None:
        """Return the call of a result in this context; None if there is none."""
        for unit in self.units:
            waiting = list(unit.items[0].message.tool_calls)
            for item in unit.items[1:]:
                call = next((call for call in waiting if call.id == (item.message.tool_call_id or "")), None)
                if item.item_id == result.item_id:
                    return call
                if call is not None:
                    waiting.remove(call)
        return None

    def messages(self) -> list[Message]:
        """Return the messages for the model. Raises `Conflict` while calls are open."""
        if self.open_calls:
            waiting = ", ".join(call.name for call in self.open_calls)
            raise Conflict(f"these calls have no result yet: {waiting}; add it, or close the calls")
        return [item.message for item in self.items]

    # -- changes --------------------------------------------------------------------------------------------------

    def with_item(self, item: ContextItem) -> "Context":
        """Append an item; a message of the assistant marks all items before it as seen.

        A whole reply replaces the truncated one with the same id.

        Raises `InvalidParameters` for a result without an open call, and `Conflict` for anything else while calls are
        open.
        """
        if (part := self.cut_off) is not None and part.item_id == item.item_id:
            return Context(self.items[:-1]).with_item(item)
        open_calls = self.open_calls
        if item.item_type == "tool_result":
            wanted = item.message.tool_call_id or ""
            if all(call.id != wanted for call in open_calls):
                raise InvalidParameters(f"no call {wanted!r} waits for a result")
        elif open_calls:
            raise Conflict(f"{len(open_calls)} calls wait for their results; nothing else may come before these")
        if item.message.role != "assistant":
            return Context((*self.items, item))
        return Context((*[before if before.seen else replace(before, seen=True) for before in self.items], item))

    def replacing(self, changed: Iterable[ContextItem]) -> "Context":
        """Replace the items with the same ids."""
        by_id = {item.item_id: item for item in changed}
        return Context(tuple([by_id.get(item.item_id, item) for item in self.items]))

    def without(self, item_ids: Collection[str]) -> "Context":
        """Remove items; raises `InvalidParameters` for a part of a unit."""
        for unit in self.units:
            gone = [item.item_id in item_ids for item in unit.items]
            if any(gone) and not all(gone):
                raise InvalidParameters("calls and their results stay or go together")
        return Context(tuple(item for item in self.items if item.item_id not in item_ids))

    def inserting(self, place: int, item: ContextItem) -> "Context":
        """Insert an item before the unit at this index of `units`, or at the end."""
        units = [unit.items for unit in self.units]
        groups = [*units[:place], (item,), *units[place:]]
        return Context(tuple(item for group in groups for item in group))

    def released(self) -> "Context":
        """Remove the protection from all items, after the end of their task."""
        return Context(tuple(replace(item, protected=False) if item.protected else item for item in self.items))

    def emptied(self) -> "Context":
        """Keep nothing but the system prompt."""
        return Context(tuple(item for item in self.items if item.item_type == "system_prompt"))

    # -- state ----------------------------------------------------------------------------------------------------

    def dump(self) -> list[dict[str, Any]]:
        """Return the context as plain JSON."""
        return [item.dump() for item in self.items]

    @classmethod
    def load(cls, state: Iterable[dict[str, Any]]) -> "Context":
        """Return the context from the JSON of `dump`."""
        return cls(tuple(ContextItem.load(item) for item in state))

    def check_integrity(self) -> list[str]:
        """Check that calls match results and that flags are consistent; returns a line for each violation."""
        problems = []
        if len(self._places) != len(self.items):
            problems.append("two items have one id")
        for number, unit in enumerate(self.units):
            problems += _problems_of(unit, last=number == len(self.units) - 1)
        for item in self.items:
            if item.offloaded != (item.offload_path is not None):
                problems.append(f"{item.item_id} is off-loaded and has no path, or the other way round")
            if item.protected and (item.offloaded or item.destroyed):
                problems.append(f"{item.item_id} is protected and has been touched")
        return problems


def cost(item: ContextItem) -> int:
    """Return the tokens of an item in the prompt; an estimate until it is counted."""
    return item.tokens if item.tokens is not None else estimate(item.text()) + MESSAGE_TOKENS


def _problems_of(unit: Unit, *, last: bool) -> list[str]:
    first = unit.items[0]
    calls = sorted(call.id for call in first.message.tool_calls)
    results = [item.message.tool_call_id or "" for item in unit.items if item.item_type == "tool_result"]
    problems = []
    if not calls and results:
        problems.append(f"results without a call after {first.item_id}")
    elif len(unit.open_calls) != len(calls) - len(results):
        problems.append(f"results of other calls after {first.item_id}")
    elif unit.open_calls and not last:
        problems.append(f"calls without results in {first.item_id}")
    return problems


# -- changes between two versions -------------------------------------------------------------------------------------
#
# A compaction changes few items, so a journal stores the change and not the whole conversation. The system prompt is
# not part of a change, because it is built from other files each time.


@dataclass(frozen=True, slots=True)
class Change:
    """The difference of two conversations: removed ids, changed items, and new items with their positions."""

    removed: tuple[str, ...] = ()
    changed: tuple[ContextItem, ...] = ()
    added: tuple[tuple[int, ContextItem], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return bool(self.removed or self.changed or self.added)

    @classmethod
    def between(cls, before: Context, after: Context) -> Self:
        """Return the change from `before` to `after`; a new token count is not a change."""
        all_old, new = _spoken(before), _spoken(after)
        same = sum(takewhile(bool, map(is_, all_old, new)))  # usually nearly all items
        old, new = {item.item_id: item for item in all_old[same:]}, new[same:]
        there = {item.item_id for item in new}
        return cls(
            tuple(item_id for item_id in old if item_id not in there),
            tuple(item for item in new if item.item_id in old and _differ(old[item.item_id], item)),
            tuple((place, item) for place, item in enumerate(new, same) if item.item_id not in old),
        )

    def applied(self, context: Context) -> Context:
        """Apply the change to a conversation."""
        changed = {item.item_id: item for item in self.changed}
        system = [item for item in context if item.item_type == "system_prompt"]
        rest = [changed.get(item.item_id, item) for item in _spoken(context) if item.item_id not in self.removed]
        for place, item in self.added:
            rest.insert(place, item)
        return Context((*system, *rest))

    def dump(self) -> dict[str, Any]:
        """Return the change as plain JSON."""
        return {
            "removed": list(self.removed),
            "changed": [item.dump() for item in self.changed],
            "added": [[place, item.dump()] for place, item in self.added],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Self:
        """Return the change from the JSON of `dump`."""
        return cls(
            tuple(state["removed"]),
            tuple(ContextItem.load(item) for item in state["changed"]),
            tuple((place, ContextItem.load(item)) for place, item in state["added"]),
        )


def _spoken(context: Context) -> list[ContextItem]:
    return [item for item in context.items if item.item_type != "system_prompt"]


_but_tokens = attrgetter(*(field.name for field in fields(ContextItem) if field.name != "tokens"))


def _differ(old: ContextItem, new: ContextItem) -> bool:
    return old is not new and _but_tokens(old) != _but_tokens(new)
