"""The items of a conversation: a message with its type and its state (O2). No I/O."""

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
"""Approximate tokens that a template adds to each message: its role and its end."""

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
"""Ids must be unique, not secret; the system's random numbers would take 35 µs each."""


@dataclass(frozen=True, slots=True)
class ContextItem:
    """A message of a conversation as it is in the prompt now. A change creates a new item with the same `item_id`.

    - `tokens` is the size of the message in the prompt; None until it is counted.
    - `offloaded`: the content is on disk at `offload_path`, and the message, which says so too, holds a placeholder.
    - `destroyed`: the content was removed because there are newer outputs of the same ephemeral tool.
    - `protected`: the item is never changed or removed, like the first message of a task.
    - `pinned`: the item is not off-loaded, because its content was restored.
    - `stands_for` is the number of removed messages that this note replaces.
    - `seen`: a model has replied to the item.
    - `cut`: the reply is truncated at its limit of tokens; its continuation will replace it.
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

    def __post_init__(self) -> None:
        """Let the message say where its content is."""
        if self.message.offload_path != self.offload_path:
            object.__setattr__(self, "message", self.message.offloaded_to(self.offload_path))

    @classmethod
    def of(
        cls, message: Message, item_type: ItemType | None = None, *, protected: bool = False, cut: bool = False
    ) -> Self:
        """Return an item with a new id. The default type depends on the message's role.

        Raises `InvalidParameters` for a type that a message of this role cannot have.
        """
        kind = item_type or _USUAL[message.role]
        if message.role not in _ROLES[kind]:
            raise InvalidParameters(f"a message of the role {message.role!r} cannot be a {kind}")
        return cls(f"item_{_ids.getrandbits(64):016x}", kind, message, protected=protected, cut=cut)

    @property
    def tool(self) -> str | None:
        """Name of the tool, if the item is the output of one."""
        return self.message.name if self.item_type == "tool_result" else None

    def with_content(self, content: str) -> Self:
        """Return the item with other content; its tokens must be counted again."""
        return replace(self, message=self.message.model_copy(update={"content": content}), tokens=None)

    def text(self) -> str:
        """Return all text of the message that a model reads, for counting."""
        return text_of(self.message)

    def dump(self) -> dict[str, Any]:
        """Return the item as plain JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "message"}
        return values | {"message": self.message.model_dump(mode="json", exclude_defaults=True)}

    @classmethod
    def load(cls, state: dict[str, Any]) -> Self:
        """Return the item from the JSON of `dump`."""
        return cls(**state | {"message": Message(**state["message"])})


def text_of(message: Message) -> str:
    """Return all text of a message that a model reads."""
    calls = [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in message.tool_calls]
    return "\n".join(part for part in (message.name, message.thinking, message.content, *calls) if part)
