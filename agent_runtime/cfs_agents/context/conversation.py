"""A conversation as an immutable list of items.

A tool's call and its result always stay together.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cfs.errors import Conflict, InvalidParameters
from cfs.wire import Message, ToolCall
from cfs_agents.context.items import MESSAGE_TOKENS, ContextItem, ItemType
from cfs_agents.context.tokens import estimate


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
class Conversation:
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
        return {item.item_id: position for position, item in enumerate(self.items)}

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

    def with_item(self, item: ContextItem) -> "Conversation":
        """Append an item; a message of the assistant marks all items before it as seen.

        A whole reply replaces the truncated one with the same id.

        Raises `InvalidParameters` for a result without an open call, and `Conflict` for anything else while calls are
        open.
        """
        if (part := self.cut_off) is not None and part.item_id == item.item_id:
            return Conversation(self.items[:-1]).with_item(item)
        open_calls = self.open_calls
        if item.item_type == "tool_result":
            call_id = item.message.tool_call_id or ""
            if all(call.id != call_id for call in open_calls):
                raise InvalidParameters(f"no call {call_id!r} waits for a result")
        elif open_calls:
            raise Conflict(f"{len(open_calls)} calls wait for their results; nothing else may come before these")
        if item.message.role != "assistant":
            return Conversation((*self.items, item))
        return Conversation((*[before if before.seen else replace(before, seen=True) for before in self.items], item))

    def replacing(self, changed: Iterable[ContextItem]) -> "Conversation":
        """Replace the items with the same ids."""
        by_id = {item.item_id: item for item in changed}
        return Conversation(tuple([by_id.get(item.item_id, item) for item in self.items]))

    def without(self, item_ids: Collection[str]) -> "Conversation":
        """Remove items; raises `InvalidParameters` for a part of a unit."""
        for unit in self.units:
            gone = [item.item_id in item_ids for item in unit.items]
            if any(gone) and not all(gone):
                raise InvalidParameters("calls and their results stay or go together")
        return Conversation(tuple(item for item in self.items if item.item_id not in item_ids))

    def inserting(self, position: int, item: ContextItem) -> "Conversation":
        """Insert an item before the unit at this index of `units`, or at the end."""
        units = [unit.items for unit in self.units]
        groups = [*units[:position], (item,), *units[position:]]
        return Conversation(tuple(item for group in groups for item in group))

    def released(self) -> "Conversation":
        """Remove the protection from all items, after the end of their task."""
        return Conversation(tuple(replace(item, protected=False) if item.protected else item for item in self.items))

    def emptied(self) -> "Conversation":
        """Keep nothing but the system prompt."""
        return Conversation(tuple(item for item in self.items if item.item_type == "system_prompt"))

    def dump(self) -> list[dict[str, Any]]:
        """Return the context as plain JSON."""
        return [item.dump() for item in self.items]

    @classmethod
    def load(cls, state: Iterable[dict[str, Any]]) -> "Conversation":
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
