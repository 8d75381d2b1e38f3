"""Summaries of a conversation by the model itself, for when nothing less makes it short enough (O5)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from cfs.errors import EngineError
from cfs.wire import Message, Usage
from cfs_agents.context import ContextItem
from cfs_agents.llm import Item, Model, Reply
from cfs_agents.sentences import Language, sentences
from cfs_agents.tools.results import shortened
from cfs_agents.usage import added

_LONGEST_ITEM = 2_000
"""Characters of each message that the model is shown."""

_NAMES = {"user": "User", "assistant": "Assistant", "tool": "Result", "system": "System"}


class Summaries:
    """Asks a model to sum up messages: a `Summarise` for a compaction. `used` is what that has cost and nobody took."""

    def __init__(self, model: Model, language: Language = "en") -> None:
        self._model = model
        self._language: Language = language
        self._used: Usage | None = None

    def take_usage(self) -> Usage | None:
        """Hand out what summaries have cost since the last time; None if there was none."""
        used, self._used = self._used, None
        return used

    async def __call__(self, items: Sequence[ContextItem]) -> str:
        """Return a summary; raises `CfsError` when there is none, or only half of one."""
        order = Message(role="system", content=sentences(self._language).sum_up)
        text = Message(role="user", content="\n\n".join(map(_shown, items)))
        reply: Reply | None = None
        stream = cast("AsyncGenerator[Item, None]", self._model.stream([order, text]))
        async with aclosing(stream):
            async for item in stream:
                reply = item if isinstance(item, Reply) else reply
        if reply is None:
            raise EngineError("the reply broke off")
        self._used = added(self._used or Usage(), reply.usage)
        if reply.finish_reason != "stop":
            raise EngineError("it was cut off")
        return reply.message.content


def _shown(item: ContextItem) -> str:
    """Write a message so that a model reads who said what; of long ones beginning and end."""
    return f"{_NAMES[item.message.role]}: {shortened(item.text(), _LONGEST_ITEM)}"
