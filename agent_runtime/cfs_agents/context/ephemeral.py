"""Ephemeral tools: only their newest outputs stay in the prompt (O4). No I/O."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from cfs.errors import InvalidSettings
from cfs_agents.context.conversation import Conversation
from cfs_agents.context.items import ContextItem


@dataclass(frozen=True, slots=True)
class EphemeralPolicy:
    """How many of its newest outputs each ephemeral tool keeps; `keep_recent` overrides the number of all.

    A tool that is not in `keep` is not ephemeral. An output that no model has seen yet is never destroyed.
    """

    keep: Mapping[str, int] = field(default_factory=dict)
    keep_recent: int | None = None

    def __post_init__(self) -> None:
        for name, count in [*self.keep.items(), ("ephemeral_keep_recent", self.keep_recent)]:
            if count is not None and count < 0:
                raise InvalidSettings(f"{name}: {count} outputs cannot be kept; 0 or more can")

    def stale(self, context: Conversation) -> list[str]:
        """Return the ids of the outputs to destroy now, oldest first."""
        if not self.keep:
            return []
        outputs: dict[str, list[ContextItem]] = defaultdict(list)
        for item in context:
            if item.tool in self.keep:
                outputs[item.tool or ""].append(item)
        old = set()
        for tool, items in outputs.items():
            count = self.keep[tool] if self.keep_recent is None else self.keep_recent
            old |= {item.item_id for item in items[: max(0, len(items) - count)] if not (item.destroyed or item.pinned)}
        if not old:
            return []
        old -= context.unseen
        return [item.item_id for item in context if item.item_id in old]
