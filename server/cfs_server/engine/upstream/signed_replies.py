"""Signed thinking of Anthropic: stored replies that are sent back unchanged.

A thinking model of Anthropic signs its thinking. It requires the thinking unchanged with the results of its tool calls.
Messages of CFS contain the text of the thinking but not the signature. So the blocks of such replies are stored here
while the session lives and space allows, also over a restart.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfs.wire import Message
from cfs_server.engine.upstream.options import PersistentTexts

Block = dict[str, Any]


_MOST = 4096


@dataclass(frozen=True, slots=True)
class _SignedReply:
    cache_key: str
    blocks: tuple[Block, ...]


class SignedReplies:
    """Blocks of replies that called tools, found again by the owner and the first call's id; the oldest go first.

    They are also kept as documents, which outlive the process.
    """

    def __init__(self, documents: PersistentTexts | None = None, limit: int = _MOST) -> None:
        self._most = limit
        self._documents = documents or PersistentTexts()
        self._kept: OrderedDict[str, _SignedReply] = OrderedDict()
        for name, text in self._documents.kept.items():
            stored = json.loads(text)
            self._kept[name] = _SignedReply(stored["session"], tuple(stored["blocks"]))

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, owner: str, cache_key: str, blocks: Sequence[Block]) -> None:
        """Remember a reply, if it calls a tool."""
        if ids := [block["id"] for block in blocks if block["type"] == "tool_use"]:
            name = _name(owner, ids[0])
            self._kept[name] = _SignedReply(cache_key, tuple(blocks))
            self._documents.keep(name, json.dumps({"session": cache_key, "blocks": list(blocks)}))
            if len(self._kept) > self._most:
                self._drop(next(iter(self._kept)))

    def of(self, owner: str, message: Message) -> tuple[Block, ...] | None:
        """Find the blocks of a message; None when they are not known, or the message has been edited since."""
        reply = self._kept.get(_name(owner, message.tool_calls[0].id)) if message.tool_calls else None
        if reply is None:
            return None
        text = "".join(block["text"] for block in reply.blocks if block["type"] == "text")
        calls = [(block["id"], block["name"], block["input"]) for block in reply.blocks if block["type"] == "tool_use"]
        same = text.strip() == message.content.strip()
        return reply.blocks if same and calls == [(c.id, c.name, c.arguments) for c in message.tool_calls] else None

    def forget(self, cache_key: str) -> None:
        """Drop the stored blocks of a session."""
        for name in [name for name, reply in self._kept.items() if reply.cache_key == cache_key]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._kept[name]
        self._documents.keep(name, None)


def _name(owner: str, call: str) -> str:
    return json.dumps([owner, call])
