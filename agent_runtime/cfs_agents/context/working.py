"""The context that an agent works with: it takes messages in, and hands out what the model is to see."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import is_
from pathlib import Path
from typing import Any

from cfs.errors import Conflict, InvalidParameters, NotFound, StorageFull, Unavailable
from cfs.wire import Message
from cfs_agents.context.compaction import Compaction, SelectiveCompactionPolicy
from cfs_agents.context.conversation import (
    MESSAGE_TOKENS,
    CachedCounter,
    Context,
    ContextItem,
    EstimatingCounter,
    ItemType,
    TokenCounter,
    cost,
)
from cfs_agents.context.offload import EphemeralPolicy, Offloader, OffloadPolicy
from cfs_agents.context.store import GENERATED_SESSION, ContextFileSystem, Record, Restored
from cfs_agents.messages import Language, catalogue

# Clean-up: what is old goes, what is too much, and what is large is compressed (O7).

LAST_CLEANED = ".cleaned"
_BETWEEN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CleaningPolicy:
    """What may stay: items up to an age, and so many bytes of files in a session (JSON and text). None is no bound."""

    expire_after: timedelta | None = timedelta(days=7)
    max_bytes: int | None = 1 << 30

    def doomed(self, records: Collection[Record], keep: Collection[str], now: datetime) -> list[tuple[str, str]]:
        """Choose what goes: ids and reasons, the oldest first; never one of the ids to `keep`."""
        total = sum(record.stored for record in records)
        chosen = []
        for record in sorted(records, key=lambda record: record.offloaded_at):
            if record.item_id in keep:
                continue
            if self.expire_after is not None and now - record.time > self.expire_after:
                because = "expired"
            elif self.max_bytes is not None and total > self.max_bytes:
                because = "over the size cap"
            else:
                continue
            chosen.append((record.item_id, because))
            total -= record.stored
        return chosen


def clean(files: ContextFileSystem, policy: CleaningPolicy, keep: Collection[str] = ()) -> int:
    """Remove what a session has too much of; return how many bytes that freed.

    `keep` are the items that the context still refers to. They stay, also beyond the cap.
    """
    freed = files.compress()
    records = [record for record in files.history() if record.path is not None]
    chosen = policy.doomed(records, keep, files.now())
    for because in sorted({because for _, because in chosen}):
        freed += files.remove([item_id for item_id, reason in chosen if reason == because], because)
    return freed


def clean_sessions(root: Path, policy: CleaningPolicy, now: datetime) -> list[str]:
    """Remove all items of the sessions below a root that nobody has open and whose last item has expired.

    Only sessions with generated ids are looked at; a folder that somebody named stays. Return the ids of the sessions
    that are gone.
    """
    return [session_id for session_id in _sessions(root) if _has_gone(root, session_id, policy, now)]


def clean_root(root: Path, policy: CleaningPolicy, now: datetime) -> list[str]:
    """Do the same once a day, for whoever makes a new session each time and never comes back to it."""
    last = root / LAST_CLEANED
    with suppress(OSError):
        if now.timestamp() - last.stat().st_mtime < _BETWEEN.total_seconds():
            return []
    try:
        last.touch()
    except OSError:  # there is no such root, or it is not ours
        return []
    return clean_sessions(root, policy, now)


def _sessions(root: Path) -> Iterator[str]:
    if root.is_dir():
        yield from sorted(path.name for path in root.iterdir() if GENERATED_SESSION.fullmatch(path.name))


def _has_gone(root: Path, session_id: str, policy: CleaningPolicy, now: datetime) -> bool:
    try:
        with ContextFileSystem(root, session_id, now=lambda: now) as files:
            made = datetime.fromtimestamp(files.path.stat().st_mtime, UTC)
            last = max((record.time for record in files.history()), default=made)
            if policy.expire_after is None or now - last <= policy.expire_after:
                return False
            files.discard()
    except (Conflict, Unavailable, StorageFull, FileNotFoundError):  # in use, not ours to remove, or gone
        return False
    return True


STATE_VERSION = "1.0"

_FUTILE = 1.1


@dataclass(frozen=True, slots=True)
class ContextUsage:
    """What the prompt costs in tokens, its limit if it has one, and how many of its items are what."""

    tokens: int
    limit: int | None
    items: int
    offloaded: int
    destroyed: int
    by_type: Mapping[str, int]


class WorkingContext:
    """A conversation that is kept short enough for its model.

    `add` each message, and hand the model what `prepare` returns: it destroys old outputs of ephemeral tools (O4), puts
    large items on disk (O3), and compacts what is still over the limit (O5). Without `files` nothing goes to disk, so
    what leaves is gone; without `compaction` there is no limit.

    One task may prepare at a time, others wait; messages may be added meanwhile. All of the state is in `dump`.
    """

    def __init__(
        self,
        files: ContextFileSystem | None = None,
        *,
        counter: TokenCounter | None = None,
        offload: OffloadPolicy | None = None,
        ephemeral: EphemeralPolicy | None = None,
        compaction: SelectiveCompactionPolicy | None = None,
        context: Context | None = None,
        language: Language = "en",
    ) -> None:
        self.files = files
        self.context = context or Context()
        self.last_compaction: Compaction | None = None
        self._news: Compaction | None = None
        self._offload = offload or OffloadPolicy()
        self._ephemeral = ephemeral or EphemeralPolicy()
        self._compaction = compaction
        counter = counter or EstimatingCounter()
        self._by_usage = not isinstance(counter, EstimatingCounter)
        """Whether a counter has to be asked for what replies tell anyway."""
        self._asked: tuple[Sequence[Message], int] = ((), 0)
        """What a model was asked last, and how many tokens it has read then."""
        self._offloader = Offloader(
            files if self._offload.enabled else None, CachedCounter(counter) if self._by_usage else counter
        )
        self._language: Language = language
        self._futile: int | None = None
        self._preparing = asyncio.Lock()
        if self._offload.unseen_budget is None and compaction is not None:
            self._offload = replace(self._offload, unseen_budget=compaction.threshold // 2)

    # -- the conversation -----------------------------------------------------------------------------------------

    def add(
        self,
        message: Message,
        item_type: ItemType | None = None,
        *,
        task: bool = False,
        cut: bool = False,
        tokens: int | None = None,
    ) -> ContextItem:
        """Append a message; the first one of a user, and one that begins a `task`, is never touched.

        A reply that is `cut` waits for the rest of it: the assistant's next message takes its place, and its id. What
        the model has written is `tokens` long, where it said so.

        Raises `InvalidParameters` for a result that no call waits for, and `Conflict` for anything but results while
        calls wait.
        """
        is_user = message.role == "user" and item_type in (None, "user_message")
        first = is_user and all(item.item_type != "user_message" for item in self.context)
        item = ContextItem.of(message, item_type, protected=is_user and (task or first), cut=cut)
        if message.role == "assistant" and (part := self.context.cut_off) is not None:
            item = replace(item, item_id=part.item_id)
        elif tokens and self._by_usage and not message.thinking:  # thoughts may leave the prompt
            item = replace(item, tokens=tokens + MESSAGE_TOKENS)
        self.context = self.context.with_item(item)
        return item

    def close_calls(self, reason: str) -> int:
        """Give every call that waits a result which says that there is none, as after a kill; return how many."""
        calls = self.context.open_calls
        said = catalogue(self._language).no_result.format(reason)
        for call in calls:
            self.add(Message(role="tool", content=said, tool_call_id=call.id, name=call.name))
        return len(calls)

    async def prepare(self) -> list[Message]:
        """Return the messages for the next call of the model. Raises `Conflict` while calls wait for their results."""
        self.context.messages()
        async with self._preparing:
            taken = self.context
            ready = await self._offloader.counted(taken, seen_only=not self._must_count(taken))
            ready = await self._offloader.destroy(ready, self._ephemeral.stale(ready))
            ready = await self._offloader.shrink(ready, self._offload.choose(ready))
            ready = await self._compact(ready)
            self.context = _with_later(ready, taken, self.context)
        return self.context.messages()

    def _must_count(self, context: Context) -> bool:
        """Whether what is new has to be counted now, and cannot wait for the reply to it, which tells its length.

        That is where it may be too much; a guess may be four times too small.
        """
        if not self._by_usage:
            return True
        limits = [self._offload.unseen_budget, self._compaction.threshold if self._compaction is not None else None]
        most = sum(cost(item) * (4 if item.tokens is None else 1) for item in context)
        return any(limit is not None and most > limit for limit in limits)

    def measured(self, prompt_tokens: int) -> None:
        """Learn how long the newest messages are: a model has read the conversation as so many tokens.

        Several that are new share what the prompt has grown by. A prompt that has changed elsewhere tells nothing.
        """
        if not self._by_usage or not prompt_tokens:
            return
        before, tokens = self._asked
        items = self.context.items
        self._asked = [item.message for item in items], prompt_tokens
        same = 0 < len(before) <= len(items) and all(map(is_, before, self._asked[0]))
        new = [item for item in items[len(before) :] if item.tokens is None]
        grown = prompt_tokens - tokens - sum(item.tokens or 0 for item in items[len(before) :])
        guess = sum(map(cost, new))
        if same and len(new) <= grown <= 8 * guess:
            self.context = self.context.replacing(replace(item, tokens=grown * cost(item) // guess) for item in new)

    async def _compact(self, context: Context) -> Context:
        """Compact; what has not helped is not tried again until the context has grown by a tenth."""
        if (policy := self._compaction) is None or context.tokens <= policy.threshold:
            return context
        if self._futile is not None and context.tokens <= self._futile * _FUTILE:
            return context
        done = self.last_compaction = self._news = await policy.compact(context, self._offloader)
        self._futile = done.tokens_after if done.tokens_after > policy.threshold else None
        return done.context

    def take_compaction(self) -> Compaction | None:
        """Hand out what the last compaction did, once."""
        news, self._news = self._news, None
        return news

    async def shorten(self, tokens: int) -> Compaction:
        """Bring the context down to so many tokens, for a model that says it is too long; no model sums it up."""
        async with self._preparing:
            taken = self.context
            policy = self._compaction or SelectiveCompactionPolicy(tokens, language=self._language)
            policy = replace(policy, threshold=tokens, goal=tokens, summarise=None, keep_recent=0)
            done = self.last_compaction = self._news = await policy.compact(taken, self._offloader)
            self.context = _with_later(done.context, taken, self.context)
        return done

    # -- what is on disk ------------------------------------------------------------------------------------------

    async def restore(self, item_id: str) -> Restored:
        """Read an item back; if it still has its place in the conversation, its content returns there, and stays.

        What comes back has no secrets in it, and says so. Raises `NotFound` if it is not on disk.
        """
        if self.files is None:
            raise NotFound("nothing is off-loaded here")
        restored = await asyncio.to_thread(self.files.restore, item_id)
        async with self._preparing:
            if item_id in self.context and (self.context[item_id].offloaded or self.context[item_id].destroyed):
                back = self.context[item_id].with_content(restored.message.content)
                back = replace(back, offloaded=False, offload_path=None, destroyed=False, pinned=True)
                self.context = self.context.replacing([back])
        return restored

    async def history(self) -> list[Record]:
        """Return what was ever off-loaded in this session, the oldest first."""
        return await asyncio.to_thread(self.files.history) if self.files is not None else []

    async def clean(self, policy: CleaningPolicy | None = None) -> int:
        """Remove what has expired or is too much, but for what the context refers to; return the bytes freed.

        Call it when the state has been saved: an older state may refer to what the present one does not.
        """
        if self.files is None:
            return 0
        keep = {item.item_id for item in self.context if item.offloaded or item.destroyed}
        return await asyncio.to_thread(clean, self.files, policy or CleaningPolicy(), keep)

    @property
    def warnings(self) -> list[str]:
        """What could not be done so far, in sentences: a disk that is full, once until there is room again."""
        return self._offloader.warnings

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def usage(self) -> ContextUsage:
        """What the context costs now; what has not been counted yet is guessed."""
        return ContextUsage(
            self.context.tokens,
            self._compaction.threshold if self._compaction is not None else None,
            len(self.context),
            sum(item.offloaded for item in self.context),
            sum(item.destroyed for item in self.context),
            dict(Counter(item.item_type for item in self.context)),
        )

    def dump(self) -> dict[str, Any]:
        """Describe the whole state as plain JSON. What is not off-loaded stands in it as it is, secrets too."""
        return {
            "schema_version": STATE_VERSION,
            "session_id": self.files.session_id if self.files is not None else None,
            "futile": self._futile,
            "items": self.context.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state in the place of the present one.

        Raises `InvalidParameters` if it is of another version or session, or does not hold together.
        """
        if state.get("schema_version") != STATE_VERSION:
            raise InvalidParameters(f"a context of version {state.get('schema_version')!r} cannot be read here")
        if self.files is not None and state["session_id"] not in (None, self.files.session_id):
            raise InvalidParameters(f"this is the state of {state['session_id']}, not of {self.files.session_id}")
        context = Context.load(state["items"])
        if problems := context.check_integrity():
            raise InvalidParameters(f"the state does not hold together: {problems[0]}")
        self.context, self._futile = context, state["futile"]


def _with_later(ready: Context, taken: Context, now: Context) -> Context:
    """Append what was added while a context was being made ready; a model may have answered meanwhile."""
    later = ready
    for item in now.items[len(taken) :]:
        later = later.with_item(item)
    return later
