"""What leaves the prompt: items that go to disk behind a placeholder, and old outputs of ephemeral tools (O3, O4)."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cfs.errors import InvalidSettings
from cfs_agents.context.conversation import Conversation, cost
from cfs_agents.context.documents import ItemRecord
from cfs_agents.context.headline import headline
from cfs_agents.context.items import MESSAGE_TOKENS, ContextItem, ItemType
from cfs_agents.context.placeholder import DESTROYED, DESTROYED_BRIEFLY, placeholder
from cfs_agents.context.store import ContextFileSystem, Offloaded
from cfs_agents.context.tokens import TokenCounter

OFFLOAD_THRESHOLD = 2000
"""Items with more tokens are off-loaded, unless a setting says otherwise."""

_TYPE_ENABLED: Mapping[ItemType, bool] = {
    "tool_result": True,
    "user_message": True,
    "skill_prompt": True,
    "assistant_message": False,
    "compaction_summary": False,
    "system_prompt": False,
}


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """Decides which items go to disk: those with more than `threshold` tokens, after a model has answered to them.

    `type_enabled` says for each type of item whether it may go; a type that is not named keeps its default. Results of
    tools, messages of users and prompts of skills may by default. The first message of a task and a summary of a
    compaction never go.

    An item that no model has seen yet stays, because reading it back would off-load it again. Only if all of these
    together have more than `unseen_budget` tokens, the largest of them go until the rest fits; the model then reads
    them in pieces.
    """

    enabled: bool = True
    threshold: int = OFFLOAD_THRESHOLD
    type_enabled: Mapping[ItemType, bool] = field(default_factory=dict)
    unseen_budget: int | None = None

    def __post_init__(self) -> None:
        if self.type_enabled.get("compaction_summary"):
            raise InvalidSettings("a compaction_summary is never off-loaded: it stands for messages that have left")
        object.__setattr__(self, "type_enabled", {**_TYPE_ENABLED, **self.type_enabled})
        if self.threshold < 1:
            raise InvalidSettings(f"offload_token_threshold is {self.threshold}; it must be 1 or more")

    def may_go(self, item: ContextItem) -> bool:
        """Return whether an item can be off-loaded at all."""
        return (
            self.enabled
            and self.type_enabled[item.item_type]
            and not (item.protected or item.pinned or item.offloaded or item.destroyed)
        )

    def choose(self, context: Conversation) -> list[str]:
        """Return the ids of the items to off-load now."""
        large = [item for item in context.items if cost(item) > self.threshold and self.may_go(item)]
        seen = [item for item in large if item.item_id not in context.unseen]
        return [item.item_id for item in [*seen, *self._too_much(context)]]

    def _too_much(self, context: Conversation) -> list[ContextItem]:
        if self.unseen_budget is None or context.tokens <= self.unseen_budget:
            return []
        total = sum(cost(item) for item in context if item.item_id in context.unseen)
        chosen = []
        for item in sorted(filter(self.may_go, context), key=cost, reverse=True):
            if total > self.unseen_budget and item.item_id in context.unseen:
                chosen.append(item)
                total -= cost(item)
        return chosen


PREVIEW_TOKENS = 200

_log = logging.getLogger(__name__)


class Offloader:
    """Counts items, writes them to disk, and replaces them by placeholders. Without `files` nothing goes to disk.

    `warnings` has a sentence for each problem; a problem that lasts is reported once.
    """

    def __init__(
        self, files: ContextFileSystem | None, counter: TokenCounter, *, preview: int = PREVIEW_TOKENS
    ) -> None:
        self.files = files
        self.warnings: list[str] = []
        self._counter = counter
        self._preview = preview
        self._in_trouble = False

    async def counted(self, context: Conversation, *, seen_only: bool = False) -> Conversation:
        """Count the items that have no count yet, in one call; with `seen_only` only those that a model has seen."""
        new = [item for item in context.items if item.tokens is None and (item.seen or not seen_only)]
        if not new:
            return context
        counts = await self._counter.count([item.text() for item in new])
        return context.replacing(
            replace(item, tokens=count + MESSAGE_TOKENS) for item, count in zip(new, counts, strict=True)
        )

    async def store(self, context: Conversation, items: Sequence[ContextItem]) -> Offloaded:
        """Write items of a context to disk, in a thread; a full disk is reported once."""
        if self.files is None or not items:
            return Offloaded()
        summaries = {item.item_id: headline(item, context.call_of(item)) for item in items}
        offloaded = await asyncio.to_thread(self.files.offload, items, summaries)
        if offloaded.refused is not None and not self._in_trouble:
            self.warnings.append(offloaded.refused.detail)
            _log.warning("%s", offloaded.refused.detail)
        self._in_trouble = offloaded.refused is not None
        for item_id, record in offloaded.records.items():
            if record.redactions and item_id in offloaded.contents:
                self.warnings.append(
                    f"{_count_of_secrets(record)} were taken out of {record.summary!r} before it went to disk"
                )
        return offloaded

    async def shrink(self, context: Conversation, item_ids: Collection[str]) -> Conversation:
        """Replace these items by placeholders, if they are on disk and the prompt becomes shorter."""
        if not item_ids:
            return context
        items = [item for item in context if item.item_id in item_ids]
        offloaded = await self.store(context, items)
        previews = [self._preview, self._preview // 4, 0]
        shorter = [await self._placeholder(item, offloaded, previews) for item in items if not item.offloaded]
        return context.replacing(item for item in shorter if item is not None)

    async def destroy(self, context: Conversation, item_ids: Collection[str]) -> Conversation:
        """Remove the content of these items from the prompt, except of those that could not be written to disk."""
        if not item_ids:
            return context
        items = [item for item in context if item.item_id in item_ids]
        offloaded = await self.store(context, items)
        changed = []
        for item in items:
            if self.files is None or item.offloaded or item.item_id in offloaded.records:
                shorter = await self._placeholder(item, offloaded, [0])
                note = item if item.offloaded else await self._note(item)
                changed.append(replace(shorter or note, destroyed=True))
        return context.replacing(changed)

    async def _placeholder(
        self, item: ContextItem, offloaded: Offloaded, previews: Iterable[int]
    ) -> ContextItem | None:
        """Return a placeholder with the longest preview that fits; None if the item itself is shorter."""
        record = offloaded.records.get(item.item_id)
        if self.files is None or record is None:
            return None
        path, content = self.files.path_of(record), offloaded.contents.get(item.item_id, "")
        texts = [placeholder(record, path, content, preview=preview) for preview in previews]
        candidates = [item.with_content(text) for text in texts]
        counts = await self._counter.count([candidate.text() for candidate in candidates])
        bound = counts[-1] + self._preview
        for candidate, count in zip(candidates, counts, strict=True):
            if count <= bound and count + MESSAGE_TOKENS < cost(item):
                return replace(candidate, tokens=count + MESSAGE_TOKENS, offloaded=True, offload_path=path)
        return None

    async def _note(self, item: ContextItem) -> ContextItem:
        """Return the longer note, or the shorter one if the item itself is short."""
        notes = [item.with_content(text) for text in (DESTROYED, DESTROYED_BRIEFLY)]
        counts = await self._counter.count([note.text() for note in notes])
        counted = [replace(note, tokens=count + MESSAGE_TOKENS) for note, count in zip(notes, counts, strict=True)]
        return next((note for note in counted if cost(note) < cost(item)), counted[-1])


def _count_of_secrets(record: ItemRecord) -> str:
    return "secrets (" + ", ".join(f"{count} × {kind}" for kind, count in (record.redactions or {}).items()) + ")"


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
