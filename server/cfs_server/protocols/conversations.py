"""Conversations in the responses protocol of OpenAI. Pure: no I/O (H4)."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from cfs.completions.messages import Open
from cfs_server.completions.requests import refusal
from cfs_server.protocols.response_items import (
    AnyItems,
    Items,
)


class NewItems(Open):
    """Body of `POST /v1/conversations/{id}/items`: items to add. They are not answered."""

    items: Items


class ConversationObject(Open):
    """A conversation. Its id is that of its session."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = Field(default_factory=dict)


class AnyItem(Open):
    """An item: a message, a call or its result, or what the model thought. Other members depend on the type."""

    id: str
    type: str


class ItemList(Open):
    """Items of a conversation, or the input of a response."""

    object: Literal["list"] = "list"
    data: tuple[dict[str, Any], ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


def text_of(item: dict[str, Any]) -> str:
    """Return the JSON of an item, a response or an event."""
    return json.dumps(item, ensure_ascii=False, separators=(",", ":"))


def page_of(items: Sequence[dict[str, Any]], *, order: str, after: str | None, limit: int) -> ItemList:
    """Return a page of items, which are given in their order. An unknown `after` is refused."""
    selected = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        start = next((at for at, item in enumerate(selected, 1) if item["id"] == after), None)
        if start is None:
            raise refusal("after", f"there is no item {after[:80]!r}")
        selected = selected[start:]
    page = selected[:limit]
    return ItemList(
        data=tuple(page),
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(selected) > limit,
    )


class NewConversation(Open):
    """Body of `POST /v1/conversations`: its first items. They are not answered. `metadata` is not kept."""

    items: AnyItems | None = None
