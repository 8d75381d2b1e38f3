"""Off-loading: items go to disk, and placeholders stand where they were (O2)."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from cfs_agents.context.conversation import Context, cost
from cfs_agents.context.headline import headline
from cfs_agents.context.items import MESSAGE_TOKENS, ContextItem
from cfs_agents.context.placeholder import DESTROYED, DESTROYED_BRIEFLY, placeholder
from cfs_agents.context.records import Record
from cfs_agents.context.storage import ContextFileSystem, Offloaded
from cfs_agents.context.tokens import TokenCounter

PREVIEW_TOKENS = 200

_log = logging.getLogger(__name__)


class Offloader:
    """Writes items, counts them, and makes what stands in their place. Without `files` nothing goes to disk.

    `warnings` says in sentences what could not be done; the same trouble is told once until it is over.
    """

    def __init__(
        self, files: ContextFileSystem | None, counter: TokenCounter, *, preview: int = PREVIEW_TOKENS
    ) -> None:
        self.files = files
        self.warnings: list[str] = []
        self._counter = counter
        self._preview = preview
        self._in_trouble = False

    async def counted(self, context: Context, *, seen_only: bool = False) -> Context:
        """Count what has not been counted yet, all of it in one call; or only what a model has answered to."""
        new = [item for item in context.items if item.tokens is None and (item.seen or not seen_only)]
        if not new:
            return context
        counts = await self._counter.count([item.text() for item in new])
        return context.replacing(
            replace(item, tokens=count + MESSAGE_TOKENS) for item, count in zip(new, counts, strict=True)
        )

    async def store(self, context: Context, items: Sequence[ContextItem]) -> Offloaded:
        """Write items of a context to disk, in a thread; a disk that takes no more is told once."""
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
                self.warnings.append(f"{_told(record)} were taken out of {record.summary!r} before it went to disk")
        return offloaded

    async def shrink(self, context: Context, item_ids: Collection[str]) -> Context:
        """Put placeholders where these items are, if they are on disk and that makes the prompt shorter."""
        if not item_ids:
            return context
        items = [item for item in context if item.item_id in item_ids]
        offloaded = await self.store(context, items)
        previews = [self._preview, self._preview // 4, 0]
        shorter = [await self._placeholder(item, offloaded, previews) for item in items if not item.offloaded]
        return context.replacing(item for item in shorter if item is not None)

    async def destroy(self, context: Context, item_ids: Collection[str]) -> Context:
        """Take the content of these items out of the prompt; those that the disk would not take keep theirs."""
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
        """Make the placeholder with the longest preview that keeps it short; None if the item itself is shorter."""
        record = offloaded.records.get(item.item_id)
        if self.files is None or record is None:
            return None
        path, content = self.files.path_of(record), offloaded.contents.get(item.item_id, "")
        texts = [placeholder(record, path, content, preview=preview) for preview in previews]
        made = [item.with_content(text) for text in texts]
        counts = await self._counter.count([candidate.text() for candidate in made])
        bound = counts[-1] + self._preview
        for candidate, count in zip(made, counts, strict=True):
            if count <= bound and count + MESSAGE_TOKENS < cost(item):
                return replace(candidate, tokens=count + MESSAGE_TOKENS, offloaded=True, offload_path=path)
        return None

    async def _note(self, item: ContextItem) -> ContextItem:
        """Make the longer note, or the shorter one where the item itself is short."""
        notes = [item.with_content(text) for text in (DESTROYED, DESTROYED_BRIEFLY)]
        counts = await self._counter.count([note.text() for note in notes])
        counted = [replace(note, tokens=count + MESSAGE_TOKENS) for note, count in zip(notes, counts, strict=True)]
        return next((note for note in counted if cost(note) < cost(item)), counted[-1])


def _told(record: Record) -> str:
    return "secrets (" + ", ".join(f"{count} × {kind}" for kind, count in (record.redactions or {}).items()) + ")"
