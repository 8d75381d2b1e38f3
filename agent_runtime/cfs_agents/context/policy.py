"""Which items go to disk while their place stays in the prompt (O3). Pure: no I/O."""

from dataclasses import dataclass

from cfs.errors import InvalidSettings
from cfs_agents.context.conversation import Context, cost
from cfs_agents.context.items import ContextItem, ItemType

DEFAULT_THRESHOLD = 2000
DEFAULT_TYPES: frozenset[ItemType] = frozenset({"tool_result", "user_message", "skill_prompt"})


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """Items of these types go when they cost `threshold` tokens or more, once a model has answered to them.

    What no model has seen yet stays, or reading a file back would only fill the disk again. Only where all of that
    together costs more than `unseen_budget` tokens the largest of it goes, until it fits: the model then reads it
    piece by piece. Never do a summary of a compaction and the first message of a task.
    """

    enabled: bool = True
    threshold: int = DEFAULT_THRESHOLD
    types: frozenset[ItemType] = DEFAULT_TYPES
    unseen_budget: int | None = None

    def __post_init__(self) -> None:
        if "compaction_summary" in self.types:
            raise InvalidSettings("a compaction_summary is never off-loaded: it is what is left of what was")
        if self.threshold < 1:
            raise InvalidSettings(f"offload_token_threshold is {self.threshold}; it must be 1 or more")

    def may_go(self, item: ContextItem) -> bool:
        """Say whether an item can be off-loaded at all."""
        return (
            self.enabled
            and item.item_type in self.types
            and not (item.protected or item.pinned or item.offloaded or item.destroyed)
        )

    def choose(self, context: Context) -> list[str]:
        """Return the ids of the items that are to go now."""
        large = [item for item in context.items if cost(item) >= self.threshold and self.may_go(item)]
        seen = [item for item in large if item.item_id not in context.unseen]
        return [item.item_id for item in [*seen, *self._too_much(context)]]

    def _too_much(self, context: Context) -> list[ContextItem]:
        if self.unseen_budget is None or context.tokens <= self.unseen_budget:
            return []
        total = sum(cost(item) for item in context if item.item_id in context.unseen)
        chosen = []
        for item in sorted(filter(self.may_go, context), key=cost, reverse=True):
            if total > self.unseen_budget and item.item_id in context.unseen:
                chosen.append(item)
                total -= cost(item)
        return chosen
