"""What has become of a conversation between two looks at it: what left, what was changed, what came. Pure: no I/O.

A compaction leaves most items as they are, so whoever keeps a conversation on disk writes the change and not the whole.
The system prompt is no part of it: that is made anew from other files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import takewhile
from operator import attrgetter, is_
from typing import Any, Self

from cfs_agents.context.conversation import Context
from cfs_agents.context.items import ContextItem


@dataclass(frozen=True, slots=True)
class Change:
    """Ids that have left, items that are other ones under their ids, and new items with their places among the rest."""

    removed: tuple[str, ...] = ()
    changed: tuple[ContextItem, ...] = ()
    added: tuple[tuple[int, ContextItem], ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.removed or self.changed or self.added)

    @classmethod
    def between(cls, before: Context, after: Context) -> Self:
        """Compare two conversations; that something was counted meanwhile is no change."""
        all_old, new = _spoken(before), _spoken(after)
        same = sum(takewhile(bool, map(is_, all_old, new)))  # nearly all of them, nearly always
        old, new = {item.item_id: item for item in all_old[same:]}, new[same:]
        there = {item.item_id for item in new}
        return cls(
            tuple(item_id for item_id in old if item_id not in there),
            tuple(item for item in new if item.item_id in old and _differ(old[item.item_id], item)),
            tuple((place, item) for place, item in enumerate(new, same) if item.item_id not in old),
        )

    def applied(self, context: Context) -> Context:
        """Make the same change again."""
        changed = {item.item_id: item for item in self.changed}
        system = [item for item in context if item.item_type == "system_prompt"]
        rest = [changed.get(item.item_id, item) for item in _spoken(context) if item.item_id not in self.removed]
        for place, item in self.added:
            rest.insert(place, item)
        return Context((*system, *rest))

    def dump(self) -> dict[str, Any]:
        """Describe it as plain JSON."""
        return {
            "removed": list(self.removed),
            "changed": [item.dump() for item in self.changed],
            "added": [[place, item.dump()] for place, item in self.added],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Self:
        """Make the change that `dump` described."""
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
