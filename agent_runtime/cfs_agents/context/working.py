"""The working context of an agent: keeps its conversation within the model's limit."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

from cfs.errors import InvalidParameters, NotFound
from cfs.wire import Message
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.context.cleaning import CleaningPolicy, clean
from cfs_agents.context.compaction import Compaction, SelectiveCompactionPolicy
from cfs_agents.context.conversation import Conversation, cost
from cfs_agents.context.documents import ItemRecord
from cfs_agents.context.items import MESSAGE_TOKENS, ContextItem, ItemType
from cfs_agents.context.offload import EphemeralPolicy, Offloader, OffloadPolicy
from cfs_agents.context.store import ContextFileSystem, Restored
from cfs_agents.context.tokens import CachedCounter, EstimatingCounter, TokenCounter

STATE_VERSION = "1.0"

_FUTILE = 1.1


@dataclass(frozen=True, slots=True)
class ContextUsage:
    """The prompt's size and limit in tokens, and the numbers of its items by state and type."""

    tokens: int
    limit: int | None
    items: int
    offloaded: int
    destroyed: int
    by_type: Mapping[str, int]


class WorkingContext:
    """A conversation that stays short enough for its model.

    `add` each message, and send the model the messages from `prepare`. It destroys old outputs of ephemeral tools (O4),
    off-loads large items to disk (O3), and compacts a conversation that is still over the limit (O5). Without `files`
    nothing is written to disk, so removed items are lost. Without `compaction` there is no limit.

    One task prepares at a time, others wait. Messages may be added meanwhile. `dump` returns the whole state.
    """

    def __init__(
        self,
        files: ContextFileSystem | None = None,
        *,
        counter: TokenCounter | None = None,
        offload: OffloadPolicy | None = None,
        ephemeral: EphemeralPolicy | None = None,
        compaction: SelectiveCompactionPolicy | None = None,
        context: Conversation | None = None,
        language: Language = "en",
    ) -> None:
        self.files = files
        self.context = context or Conversation()
        self.last_compaction: Compaction | None = None
        self._news: Compaction | None = None
        self._offload = offload or OffloadPolicy()
        self._ephemeral = ephemeral or EphemeralPolicy()
        self._compaction = compaction
        counter = counter or EstimatingCounter()
        self._by_usage = not isinstance(counter, EstimatingCounter)
        """Whether the usage in replies replaces calls of the counter, which are slow."""
        self._asked: tuple[Sequence[Message], int] = ((), 0)
        """The messages of the last request, and the number of prompt tokens that the model has read."""
        self._offloader = Offloader(
            files if self._offload.enabled else None, CachedCounter(counter) if self._by_usage else counter
        )
        self._language: Language = language
        self._futile: int | None = None
        self._preparing = asyncio.Lock()
        if self._offload.unseen_budget is None and compaction is not None:
            self._offload = replace(self._offload, unseen_budget=compaction.threshold // 2)

    def add(
        self,
        message: Message,
        item_type: ItemType | None = None,
        *,
        task: bool = False,
        cut: bool = False,
        tokens: int | None = None,
    ) -> ContextItem:
        """Append a message. The first message of a user, and one that begins a `task`, is protected.

        A `cut` reply is truncated: the assistant's next message replaces it and gets its id. `tokens` is the length of
        the reply, if the model has reported it.

        Raises `InvalidParameters` for a result without an open call, and `Conflict` for anything but a result while
        calls are open.
        """
        is_user = message.role == "user" and item_type in (None, "user_message")
        first = is_user and all(item.item_type != "user_message" for item in self.context)
        item = ContextItem.of(message, item_type, protected=is_user and (task or first), cut=cut)
        if message.role == "assistant" and (part := self.context.cut_off) is not None:
            item = replace(item, item_id=part.item_id)
        elif tokens and self._by_usage and not message.thinking:  # the template may leave thinking out of the prompt
            item = replace(item, tokens=tokens + MESSAGE_TOKENS)
        self.context = self.context.with_item(item)
        return item

    def close_calls(self, reason: str) -> int:
        """Add a result with the `reason` to each open call, for example after a kill; returns their number."""
        calls = self.context.open_calls
        text = catalogue(self._language).no_result.format(reason)
        for call in calls:
            self.add(Message(role="tool", content=text, tool_call_id=call.id, name=call.name))
        return len(calls)

    async def prepare(self) -> list[Message]:
        """Return the messages for the next request to the model. Raises `Conflict` while calls are open."""
        self.context.messages()
        async with self._preparing:
            taken = self.context
            ready = await self._offloader.counted(taken, seen_only=not self._must_count(taken))
            ready = await self._offloader.destroy(ready, self._ephemeral.stale(ready))
            ready = await self._offloader.shrink(ready, self._offload.choose(ready))
            ready = await self._compact(ready)
            self.context = _with_later(ready, taken, self.context)
        return self.context.messages()

    def _must_count(self, context: Conversation) -> bool:
        """Return whether new messages must be counted now, and not by the usage of the next reply.

        This is so if they may exceed a limit. An estimate may be four times too small.
        """
        if not self._by_usage:
            return True
        limits = [self._offload.unseen_budget, self._compaction.threshold if self._compaction is not None else None]
        upper_bound = sum(cost(item) * (4 if item.tokens is None else 1) for item in context)
        return any(limit is not None and upper_bound > limit for limit in limits)

    def measured(self, prompt_tokens: int) -> None:
        """Set the tokens of the newest messages from the number of prompt tokens that a model has read.

        Several new messages share the growth of the prompt. If the prompt has changed elsewhere, nothing is set.
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

    async def _compact(self, context: Conversation) -> Conversation:
        """Compact the context; after a compaction that did not help, only if it has grown by a tenth."""
        if (policy := self._compaction) is None or context.tokens <= policy.threshold:
            return context
        if self._futile is not None and context.tokens <= self._futile * _FUTILE:
            return context
        result = self.last_compaction = self._news = await policy.compact(context, self._offloader)
        self._futile = result.tokens_after if result.tokens_after > policy.threshold else None
        return result.context

    def take_compaction(self) -> Compaction | None:
        """Return the last compaction if it was not returned before, else None."""
        news, self._news = self._news, None
        return news

    async def shorten(self, tokens: int) -> Compaction:
        """Shorten the context to `tokens`, after a model has refused it as too long. No model makes a summary."""
        async with self._preparing:
            taken = self.context
            policy = self._compaction or SelectiveCompactionPolicy(tokens, language=self._language)
            policy = replace(policy, threshold=tokens, goal=tokens, summarise=None, keep_recent=0)
            result = self.last_compaction = self._news = await policy.compact(taken, self._offloader)
            self.context = _with_later(result.context, taken, self.context)
        return result

    async def restore(self, item_id: str) -> Restored:
        """Read an item from disk. If it is still in the conversation, its content returns there and is pinned.

        The content is without secrets (`Restored.redacted`). Raises `NotFound` if the item is not on disk.
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

    async def history(self) -> list[ItemRecord]:
        """Return the records of all items ever off-loaded in this session, oldest first."""
        return await asyncio.to_thread(self.files.history) if self.files is not None else []

    async def clean(self, policy: CleaningPolicy | None = None) -> int:
        """Remove items beyond the policy's limits that the context does not refer to; returns the bytes freed.

        Call it after the state has been saved: an older state may refer to other items.
        """
        if self.files is None:
            return 0
        keep = {item.item_id for item in self.context if item.offloaded or item.destroyed}
        return await asyncio.to_thread(clean, self.files, policy or CleaningPolicy(), keep)

    @property
    def warnings(self) -> list[str]:
        """Warnings so far, as sentences, such as a full disk, which is reported once until there is space again."""
        return self._offloader.warnings

    @property
    def usage(self) -> ContextUsage:
        """Current size of the context; messages that are not counted yet are estimated."""
        return ContextUsage(
            self.context.tokens,
            self._compaction.threshold if self._compaction is not None else None,
            len(self.context),
            sum(item.offloaded for item in self.context),
            sum(item.destroyed for item in self.context),
            dict(Counter(item.item_type for item in self.context)),
        )

    def dump(self) -> dict[str, Any]:
        """Return the whole state as plain JSON. Items that are not off-loaded are in it with their secrets."""
        return {
            "schema_version": STATE_VERSION,
            "session_id": self.files.session_id if self.files is not None else None,
            "futile": self._futile,
            "items": self.context.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the current state by one from `dump`.

        Raises `InvalidParameters` if it has another version or session, or is inconsistent.
        """
        if state.get("schema_version") != STATE_VERSION:
            raise InvalidParameters(f"a context of version {state.get('schema_version')!r} cannot be read here")
        if self.files is not None and state["session_id"] not in (None, self.files.session_id):
            raise InvalidParameters(f"this is the state of {state['session_id']}, not of {self.files.session_id}")
        context = Conversation.load(state["items"])
        if problems := context.check_integrity():
            raise InvalidParameters(f"the state does not hold together: {problems[0]}")
        self.context, self._futile = context, state["futile"]


def _with_later(ready: Conversation, taken: Conversation, now: Conversation) -> Conversation:
    """Append the messages that were added during the preparation of a context."""
    later = ready
    for item in now.items[len(taken) :]:
        later = later.with_item(item)
    return later
