"""Compaction: whole messages leave a prompt that has become too long (O5).

The selective compaction removes messages type by type, in the order `tool_result` (with its calls), `skill_prompt`,
`assistant_message`, `user_message`, the oldest of each first, until the goal is met. Everything is on disk before it
leaves, and a note says how many messages have left and where their list is. If that is not enough, a model sums up
everything that it has answered.

System prompts, the first message of a task and messages that no model has answered never leave. The selective
compaction also keeps summaries and, if a model can sum up, restored items and the newest `keep_recent` units.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cfs.errors import InvalidSettings
from cfs.wire import Message
from cfs_agents.base.messages import Language, Messages, catalogue
from cfs_agents.context.conversation import Conversation, Unit
from cfs_agents.context.items import ContextItem, ItemType
from cfs_agents.context.offload import Offloader
from cfs_agents.context.tokens import EstimatingCounter, estimate

Summarise = Callable[[Sequence[ContextItem]], Awaitable[str]]
"""Asks a model for a summary of items; an exception means that there is none."""

ORDER: tuple[ItemType, ...] = ("tool_result", "skill_prompt", "assistant_message", "user_message")

_GOAL = 0.6
_NOTE_SHARE = 10
_LONGEST_NOTE = 400


@dataclass(frozen=True, slots=True)
class Compaction:
    """Result of a compaction. `removed` counts messages by type; `kept_because` is why it could not do more."""

    context: Conversation
    tokens_before: int
    tokens_after: int
    removed: Mapping[str, int] = field(default_factory=dict)
    summarised: bool = False
    kept_because: str | None = None


@dataclass(frozen=True, slots=True)
class SelectiveCompactionPolicy:
    """Shortens a context with more than `threshold` tokens to at most `goal` tokens.

    The goal is below the threshold (60 % of it by default), so that not every call has to compact again.
    """

    threshold: int
    summarise: Summarise | None = None
    goal: int | None = None
    keep_recent: int = 4
    order: tuple[ItemType, ...] = ORDER
    language: Language = "en"

    def __post_init__(self) -> None:
        if self.threshold < 1 or (self.goal is not None and not 0 < self.goal <= self.threshold):
            raise InvalidSettings(f"a compaction from {self.threshold} to {self.goal} tokens is impossible")
        if {"system_prompt", "compaction_summary"} & set(self.order):
            raise InvalidSettings("system prompts and summaries do not leave a context")

    async def compact(
        self, context: Conversation, offloader: Offloader | None = None, *, ask: bool = True
    ) -> Compaction:
        """Shorten a context that is over the threshold; return any other context unchanged.

        Without a model for summaries the newest units and restored items leave as well, as far as necessary. With
        `ask=False` there is such a model, but it is not asked: then these stay.
        """
        work = offloader or Offloader(None, EstimatingCounter())
        before = await work.counted(context)
        if before.tokens <= self.threshold:
            return Compaction(before, before.tokens, before.tokens)
        goal = self.goal or int(self.threshold * _GOAL)
        after, removed = await self._select(before, work, goal, spare=True)
        if after.tokens > self.threshold and self.summarise is None:
            after, more = await self._select(after, work, self.threshold, spare=False)
            removed += more
        result = Compaction(after, before.tokens, after.tokens, removed)
        if after.tokens <= self.threshold:
            return result
        if self.summarise is None or not ask:
            return replace(result, kept_because="no model is asked for a summary")
        return await self._sum_up(result, self.summarise, work)

    async def _select(
        self, context: Conversation, offloader: Offloader, goal: int, *, spare: bool
    ) -> tuple[Conversation, Counter[str]]:
        room = min(_LONGEST_NOTE, goal // _NOTE_SHARE)
        chosen: list[Unit] = []
        excess = context.tokens + room - goal
        for unit in self._candidates(context, spare=spare):
            if excess <= 0:
                break
            chosen.append(unit)
            excess -= unit.tokens
        gone = await _stored(context, chosen, offloader)
        if not gone:
            return context, Counter()
        after = await offloader.counted(_with_note(context, gone, offloader, room, catalogue(self.language)))
        if after.tokens >= context.tokens:
            return context, Counter()
        return after, Counter(item.item_type for unit in gone for item in unit.items)

    def _candidates(self, context: Conversation, *, spare: bool) -> Iterable[Unit]:
        """Return the units that may leave, in order; `spare` keeps new and restored ones."""
        older = context.units[: max(0, len(context.units) - self.keep_recent)] if spare else context.units
        free = [unit for unit in older if _may_leave(unit) and not (spare and any(item.pinned for item in unit.items))]
        for kind in self.order:
            yield from (unit for unit in free if unit.kind == kind)

    async def _sum_up(self, so_far: Compaction, summarise: Summarise, offloader: Offloader) -> Compaction:
        """Replace everything that may leave by a model's summary, if that is shorter."""
        context = so_far.context
        old = [unit for unit in context.units if _may_leave(unit)]
        if all(unit.kind == "compaction_summary" for unit in old):
            return replace(so_far, kept_because="nothing else may leave")
        if len(await _stored(context, old, offloader)) < len(old):
            return replace(so_far, kept_because="what it would replace cannot be off-loaded")
        try:
            summary = await summarise([item for unit in old for item in unit.items])
        except Exception as error:  # noqa: BLE001 - whatever a model's client raises, the conversation goes on
            return replace(so_far, kept_because=f"the summary failed: {error}")
        if not summary.strip():
            return replace(so_far, kept_because="the summary is empty")
        after = await offloader.counted(
            _with_summary(context, old, summary.strip(), offloader, catalogue(self.language))
        )
        if after.tokens >= context.tokens:
            return replace(so_far, kept_because="the summary is not smaller")
        removed = Counter(so_far.removed) + Counter(item.item_type for unit in old for item in unit.items)
        return replace(so_far, context=after, tokens_after=after.tokens, removed=removed, summarised=True)


def _may_leave(unit: Unit) -> bool:
    return unit.kind != "system_prompt" and not (unit.unseen or any(item.protected for item in unit.items))


async def _stored(context: Conversation, units: Sequence[Unit], offloader: Offloader) -> list[Unit]:
    """Write units to disk and return those that may leave now. A summary is not written."""
    if offloader.files is None:
        return list(units)
    items = [item for unit in units for item in unit.items if item.item_type != "compaction_summary"]
    safe = (await offloader.store(context, items)).records
    return [
        unit
        for unit in units
        if all(item.item_id in safe or item.item_type == "compaction_summary" for item in unit.items)
    ]


def _with_note(
    context: Conversation, gone: Sequence[Unit], offloader: Offloader, room: int, say: Messages
) -> Conversation:
    """Remove units; one note says how many messages have left so far and where the last of them are."""
    notes = [item for item in context if item.stands_for]
    ids = {item.item_id for unit in gone for item in unit.items} | {note.item_id for note in notes}
    count = sum(len(unit.items) for unit in gone) + sum(note.stands_for for note in notes)
    position = next(index for index, unit in enumerate(context.units) if unit.items[0].item_id in ids)
    rest = context.without(ids)
    text = say.taken_out.format(count)
    if offloader.files is not None:
        text += f"\n{say.on_disk.format(offloader.files.index_path)}"
        for record in reversed(offloader.files.history()):
            if record.path is None or record.item_id in rest or record.item_type == "assistant_message":
                continue
            line = f"\n- {record.summary} ({offloader.files.path_of(record)})"
            if estimate(text + line) > room:
                break
            text += line
    note = ContextItem.of(Message(role="user", content=text), "compaction_summary")
    return rest.inserting(position, replace(note, stands_for=count, seen=True))


def _with_summary(
    context: Conversation, old: Sequence[Unit], body: str, offloader: Offloader, say: Messages
) -> Conversation:
    """Replace units by a summary, at the place of the last one."""
    ids = {item.item_id for unit in old for item in unit.items}
    last = max(index for index, unit in enumerate(context.units) if unit.items[0].item_id in ids)
    position = sum(unit.items[0].item_id not in ids for unit in context.units[:last])
    text = f"{say.summary}\n{body}"
    if offloader.files is not None:
        text += f"\n{say.on_disk.format(offloader.files.index_path)}"
    summary = ContextItem.of(Message(role="user", content=text), "compaction_summary")
    return context.without(ids).inserting(position, replace(summary, seen=True))
