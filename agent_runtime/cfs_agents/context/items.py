"""The items of a context: messages, and what has become of them (O2)."""

import json
import os
import random
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from cfs.errors import InvalidParameters
from cfs.wire import Message, Role

ItemType = Literal[
    "tool_result", "user_message", "assistant_message", "skill_prompt", "compaction_summary", "system_prompt"
]

MESSAGE_TOKENS = 4
"""What a template puts around each message, roughly: its role and its end."""

_USUAL: dict[Role, ItemType] = {
    "system": "system_prompt",
    "user": "user_message",
    "assistant": "assistant_message",
    "tool": "tool_result",
}
_ROLES: dict[ItemType, frozenset[Role]] = {
    "tool_result": frozenset({"tool"}),
    "user_message": frozenset({"user"}),
    "assistant_message": frozenset({"assistant"}),
    "skill_prompt": frozenset({"user", "system"}),
    "compaction_summary": frozenset({"user"}),
    "system_prompt": frozenset({"system"}),
}
_ids = random.Random()
os.register_at_fork(after_in_child=_ids.seed)
"""Ids are to be different, not secret; asking the system for each would take 35 µs."""


@dataclass(frozen=True, slots=True)
class ContextItem:
    """A message of a conversation, as it stands in the prompt now. A change makes a new one with the same `item_id`.

    `tokens` is what the message costs in the prompt, or None until it has been counted. `offloaded` means that its
    content is on disk and a placeholder stands here, which names `offload_path`; `destroyed`, that its content was
    taken out because newer outputs of the same tool have come. A `protected` item is never touched: the first message
    of a task. A `pinned` one is not off-loaded: somebody had its content put back. `stands_for` is how many messages
    have gone where a note now says so. `seen` means that a model has answered to it. A `cut` reply has reached its
    limit of tokens: what is still to come will be joined to it.
    """

    item_id: str
    item_type: ItemType
    message: Message
    tokens: int | None = None
    offloaded: bool = False
    offload_path: str | None = None
    destroyed: bool = False
    protected: bool = False
    pinned: bool = False
    stands_for: int = 0
    seen: bool = False
    cut: bool = False

    @classmethod
    def of(
        cls, message: Message, item_type: ItemType | None = None, *, protected: bool = False, cut: bool = False
    ) -> Self:
        """Make an item with an id of its own; without a type it has the usual one of the message's role.

        Raises `InvalidParameters` for a type that a message of this role cannot have.
        """
        kind = item_type or _USUAL[message.role]
        if message.role not in _ROLES[kind]:
            raise InvalidParameters(f"a message of the role {message.role!r} cannot be a {kind}")
        return cls(f"item_{_ids.getrandbits(64):016x}", kind, message, protected=protected, cut=cut)

    @property
    def tool(self) -> str | None:
        """Name of the tool that this is the output of."""
        return self.message.name if self.item_type == "tool_result" else None

    def with_content(self, content: str) -> Self:
        """Put another content into the message; the rest of it stays, and the tokens are to be counted again."""
        return replace(self, message=self.message.model_copy(update={"content": content}), tokens=None)

    def text(self) -> str:
        """Everything of the message that a model reads, for counting."""
        return text_of(self.message)

    def dump(self) -> dict[str, Any]:
        """Describe the item as plain JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "message"}
        return values | {"message": self.message.model_dump(mode="json", exclude_defaults=True)}

    @classmethod
    def load(cls, state: dict[str, Any]) -> Self:
        """Make the item that `dump` described."""
        return cls(**state | {"message": Message(**state["message"])})


def text_of(message: Message) -> str:
    """Put together everything of a message that a model reads."""
    calls = [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in message.tool_calls]
    return "\n".join(part for part in (message.name, message.thinking, message.content, *calls) if part)
