"""Summaries by the model itself, used when nothing else makes a conversation short enough (O5)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from cfs.errors import EngineError
from cfs.wire import Message, Usage
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.context import ContextItem
from cfs_agents.loop.model import CompleteResponse, Item, Model
from cfs_agents.tools.results import shortened

_LONGEST_ITEM = 2_000
"""Characters of each message that the model sees."""

_NAMES = {"user": "User", "assistant": "Assistant", "tool": "Result", "system": "System"}


class Summaries:
    """Asks a model to sum up messages: a `Summarise` for a compaction."""

    def __init__(self, model: Model, language: Language = "en") -> None:
        self._model = model
        self._language: Language = language
        self._used: Usage | None = None

    def take_usage(self) -> Usage | None:
        """Return the usage of summaries since the last call; None if there was none."""
        used, self._used = self._used, None
        return used

    async def __call__(self, items: Sequence[ContextItem]) -> str:
        """Return a summary; raises `CfsError` if there is none or it is truncated."""
        order = Message(role="system", content=catalogue(self._language).sum_up)
        text = Message(role="user", content="\n\n".join(map(_shown, items)))
        reply: CompleteResponse | None = None
        stream = cast("AsyncGenerator[Item, None]", self._model.stream([order, text]))
        async with aclosing(stream):
            async for item in stream:
                reply = item if isinstance(item, CompleteResponse) else reply
        if reply is None:
            raise EngineError("the reply broke off")
        self._used = (self._used or Usage()) + reply.usage
        if reply.finish_reason != "stop":
            raise EngineError("it was cut off")
        return reply.message.content


def _shown(item: ContextItem) -> str:
    """Return a message with its role; a long one is shortened in the middle."""
    return f"{_NAMES[item.message.role]}: {shortened(item.text(), _LONGEST_ITEM)}"
