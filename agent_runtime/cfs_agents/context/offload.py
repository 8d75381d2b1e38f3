"""Off-loading: items go to disk, and placeholders stand where they were (O2)."""

import asyncio
import json
import logging
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cfs.errors import InvalidSettings
from cfs.wire import ToolCall
from cfs_agents.context.conversation import MESSAGE_TOKENS, Context, ContextItem, ItemType, TokenCounter, cost, estimate
from cfs_agents.context.store import ContextFileSystem, Offloaded, Record

# A headline: one line that describes an item whose content is elsewhere (O7). No I/O.

LONGEST = 160

_ARGUMENTS = 60


def headline(item: ContextItem, call: ToolCall | None = None) -> str:
    """Return the call that an item answers, if any, and the first line of its content that is not blank."""
    first = _clipped(_first_line(item.message.content), LONGEST)
    if item.item_type != "tool_result":
        calls = ", ".join(_shown(call) for call in item.message.tool_calls)
        return _clipped(f"{first} -> {calls}" if first and calls else first or calls, LONGEST)
    about = _shown(call) if call is not None else item.message.name or "tool"
    return _clipped(f"{about}: {first}", LONGEST)


def _shown(call: ToolCall) -> str:
    arguments = json.dumps(call.arguments, ensure_ascii=False) if call.arguments else ""
    return f"{call.name} {_clipped(arguments, _ARGUMENTS)}".rstrip()


def _first_line(text: str) -> str:
    """Return the first line that is not blank, without splitting the whole text."""
    start = len(text) - len(text.lstrip())
    end = text.find("\n", start)
    return text[start : len(text) if end < 0 else end]


def _clipped(text: str, longest: int) -> str:
    clean = " ".join(text[: 4 * longest].split())
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


# Placeholders: what replaces off-loaded content in the prompt (O2). No I/O.

OFFLOADED = "[Content offloaded]"
HOW_TO_READ = "Use Read tool to view details."
DESTROYED = "[Output removed: newer outputs of the same tool follow]"
DESTROYED_BRIEFLY = "[removed]"

_JOINERS = "\u200d\ufe0e\ufe0f"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FURTHEST = 32


def placeholder(record: Record, path: str, content: str = "", *, preview: int = 0) -> str:
    """Return the placeholder for content on disk: its path, size and headline.

    With `preview` its beginning and its end follow, of about so many tokens together.
    """
    lines = content.count("\n") + (not content.endswith("\n")) if content else 0
    size = f"Size: {record.size:,} bytes" + (f", {lines:,} lines" if content else "")
    size += f", {record.tokens:,} tokens" if record.tokens is not None else ""
    said = [OFFLOADED, f"Path: {path}", HOW_TO_READ, size]
    if record.summary:
        said.append(f"Summary: {record.summary}")
    if record.redactions:
        said.append(f"Secrets were taken out: {_listed(record.redactions)}")
    if preview > 0 and content:
        head, tail = beginning(content, preview // 2), ending(content, preview // 2)
        if len(head) + len(tail) < len(content):
            hidden = len(content) - len(head) - len(tail)
            said += ["Beginning:", head.rstrip("\n"), f"[... {hidden:,} characters ...]", "End:", tail.rstrip("\n")]
        else:
            said += ["Content:", content]
    return "\n".join(said)


def beginning(text: str, tokens: int) -> str:
    """Return the beginning of a text, at most so many tokens: whole lines if possible, never half a character."""
    size = _fitting(text[: 4 * tokens], tokens)
    if size == len(text):
        return text
    line = text.rfind("\n", size // 2, size)
    return text[: _boundary(text, size)] if line < 0 else text[: line + 1]


def ending(text: str, tokens: int) -> str:
    """Return the end of a text in the same way."""
    size = _fitting(text[-4 * tokens :][::-1], tokens) if tokens else 0
    start = len(text) - size
    if start == 0:
        return text
    line = text.find("\n", start, start + size // 2)
    return text[_boundary(text, start, -1) :] if line < 0 else text[line + 1 :]


def _fitting(text: str, tokens: int) -> int:
    """Return how many characters from the start cost at most so many tokens."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if estimate(text[:middle]) <= tokens:
            low = middle
        else:
            high = middle - 1
    return low


def _boundary(text: str, at: int, towards: int = 1) -> int:
    """Move a cut to a boundary between visible characters: to the left, or to the right if `towards` is -1."""
    place = at
    while 0 < place < len(text) and abs(place - at) < _FURTHEST and _joined(text[place - 1], text[place]):
        place -= towards
    return place


def _joined(left: str, right: str) -> bool:
    return (
        unicodedata.combining(right) > 0
        or right in _JOINERS
        or left == "\u200d"
        or ord(right) in _SKIN_TONES
        or (left == "\r" and right == "\n")
    )


def _listed(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in found.items())


# Ephemeral tools: only their newest outputs stay in the prompt (O4). No I/O.


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

    def stale(self, context: Context) -> list[str]:
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


# Off-loading: which items go to disk while a placeholder stays in the prompt (O3). No I/O.

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

    def choose(self, context: Context) -> list[str]:
        """Return the ids of the items to off-load now."""
        large = [item for item in context.items if cost(item) > self.threshold and self.may_go(item)]
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

    async def counted(self, context: Context, *, seen_only: bool = False) -> Context:
        """Count the items that have no count yet, in one call; with `seen_only` only those that a model has seen."""
        new = [item for item in context.items if item.tokens is None and (item.seen or not seen_only)]
        if not new:
            return context
        counts = await self._counter.count([item.text() for item in new])
        return context.replacing(
            replace(item, tokens=count + MESSAGE_TOKENS) for item, count in zip(new, counts, strict=True)
        )

    async def store(self, context: Context, items: Sequence[ContextItem]) -> Offloaded:
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
                self.warnings.append(f"{_told(record)} were taken out of {record.summary!r} before it went to disk")
        return offloaded

    async def shrink(self, context: Context, item_ids: Collection[str]) -> Context:
        """Replace these items by placeholders, if they are on disk and the prompt becomes shorter."""
        if not item_ids:
            return context
        items = [item for item in context if item.item_id in item_ids]
        offloaded = await self.store(context, items)
        previews = [self._preview, self._preview // 4, 0]
        shorter = [await self._placeholder(item, offloaded, previews) for item in items if not item.offloaded]
        return context.replacing(item for item in shorter if item is not None)

    async def destroy(self, context: Context, item_ids: Collection[str]) -> Context:
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
        made = [item.with_content(text) for text in texts]
        counts = await self._counter.count([candidate.text() for candidate in made])
        bound = counts[-1] + self._preview
        for candidate, count in zip(made, counts, strict=True):
            if count <= bound and count + MESSAGE_TOKENS < cost(item):
                return replace(candidate, tokens=count + MESSAGE_TOKENS, offloaded=True, offload_path=path)
        return None

    async def _note(self, item: ContextItem) -> ContextItem:
        """Return the longer note, or the shorter one if the item itself is short."""
        notes = [item.with_content(text) for text in (DESTROYED, DESTROYED_BRIEFLY)]
        counts = await self._counter.count([note.text() for note in notes])
        counted = [replace(note, tokens=count + MESSAGE_TOKENS) for note, count in zip(notes, counts, strict=True)]
        return next((note for note in counted if cost(note) < cost(item)), counted[-1])


def _told(record: Record) -> str:
    return "secrets (" + ", ".join(f"{count} × {kind}" for kind, count in (record.redactions or {}).items()) + ")"
