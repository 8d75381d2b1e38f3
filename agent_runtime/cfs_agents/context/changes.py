"""The change between two versions of a conversation. No I/O.

A compaction changes few items, so a journal stores the change and not the whole conversation. The system prompt is not
part of a change, because it is built from other files each time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import takewhile
from operator import attrgetter, is_
from typing import Any, Self

from cfs_agents.context.conversation import Conversation
from cfs_agents.context.items import ContextItem


@dataclass(frozen=True, slots=True)
class ConversationChange:
    """The difference of two conversations: removed ids, changed items, and new items with their positions."""

    removed: tuple[str, ...] = ()
    changed: tuple[ContextItem, ...] = ()
    added: tuple[tuple[int, ContextItem], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return bool(self.removed or self.changed or self.added)

    @classmethod
    def between(cls, before: Conversation, after: Conversation) -> Self:
        """Return the change from `before` to `after`; a new token count is not a change."""
        all_old, new = _spoken(before), _spoken(after)
        same = sum(takewhile(bool, map(is_, all_old, new)))  # usually nearly all items
        old, new = {item.item_id: item for item in all_old[same:]}, new[same:]
        new_ids = {item.item_id for item in new}
        return cls(
            tuple(item_id for item_id in old if item_id not in new_ids),
            tuple(item for item in new if item.item_id in old and _differ(old[item.item_id], item)),
            tuple((position, item) for position, item in enumerate(new, same) if item.item_id not in old),
        )

    def applied(self, context: Conversation) -> Conversation:
        """Apply the change to a conversation."""
        changed = {item.item_id: item for item in self.changed}
        system = [item for item in context if item.item_type == "system_prompt"]
        rest = [changed.get(item.item_id, item) for item in _spoken(context) if item.item_id not in self.removed]
        for position, item in self.added:
            rest.insert(position, item)
        return Conversation((*system, *rest))

    def dump(self) -> dict[str, Any]:
        """Return the change as plain JSON."""
        return {
            "removed": list(self.removed),
            "changed": [item.dump() for item in self.changed],
            "added": [[position, item.dump()] for position, item in self.added],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Self:
        """Return the change from the JSON of `dump`."""
        return cls(
            tuple(state["removed"]),
            tuple(ContextItem.load(item) for item in state["changed"]),
            tuple((position, ContextItem.load(item)) for position, item in state["added"]),
        )


def _spoken(context: Conversation) -> list[ContextItem]:
    return [item for item in context.items if item.item_type != "system_prompt"]


_but_tokens = attrgetter(*(field.name for field in fields(ContextItem) if field.name != "tokens"))


def _differ(old: ContextItem, new: ContextItem) -> bool:
    return old is not new and _but_tokens(old) != _but_tokens(new)
