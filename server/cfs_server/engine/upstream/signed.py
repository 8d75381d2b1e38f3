"""Replies that go back to the upstream exactly as they came. Pure: no I/O.

A model of Anthropic that thinks signs what it thought, and wants it back unchanged with the results of the tools that
it called. Messages of ours keep the text of the thinking, not the signature; so the blocks of such replies are kept
here, for as long as the session lives and there is room.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfs.wire import Message

Block = dict[str, Any]
_MOST = 4096


@dataclass(frozen=True, slots=True)
class _Kept:
    cache_key: str
    blocks: tuple[Block, ...]


class SignedReplies:
    """Blocks of replies that called tools, found again by the owner and the first call's id; the oldest go first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, owner: str, cache_key: str, blocks: Sequence[Block]) -> None:
        """Remember a reply, if it calls a tool."""
        if ids := [block["id"] for block in blocks if block["type"] == "tool_use"]:
            self._kept[owner, ids[0]] = _Kept(cache_key, tuple(blocks))
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def of(self, owner: str, message: Message) -> tuple[Block, ...] | None:
        """Find the blocks of a message; None when they are not known, or the message has been edited since."""
        kept = self._kept.get((owner, message.tool_calls[0].id)) if message.tool_calls else None
        if kept is None:
            return None
        text = "".join(block["text"] for block in kept.blocks if block["type"] == "text")
        calls = [(block["id"], block["name"], block["input"]) for block in kept.blocks if block["type"] == "tool_use"]
        same = text.strip() == message.content.strip()
        return kept.blocks if same and calls == [(c.id, c.name, c.arguments) for c in message.tool_calls] else None

    def forget(self, cache_key: str) -> None:
        """Drop what a session's turns left."""
        for key in [key for key, kept in self._kept.items() if kept.cache_key == cache_key]:
            del self._kept[key]
