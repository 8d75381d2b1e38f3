"""Summaries of a conversation by the model itself, for when nothing less makes it short enough (O5)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal, cast

from cfs.errors import EngineError
from cfs.wire import Message, Usage
from cfs_agents.context import ContextItem
from cfs_agents.llm import Item, Model, Reply
from cfs_agents.tools.results import shortened
from cfs_agents.usage import added

_LONGEST_ITEM = 2_000
"""Characters of each message that the model is shown."""

_ORDER = {
    "en": "Sum up this part of a conversation between a user and an assistant that works with tools. Keep what the next"
    " steps need: the task, what was decided and found, names of files, exact values, what is still open. Leave out"
    " greetings and whatever was only on the way. At most 200 words, no headings.",
    "zh": "请概括用户与使用工具的助手之间的这段对话。保留下一步需要的内容：任务、已作的决定、发现、文件名、确切的数值、"
    "尚未完成的事。省略寒暄和中间过程。最多 300 字，不用标题。",
}
_NAMES = {"user": "User", "assistant": "Assistant", "tool": "Result", "system": "System"}


class Summaries:
    """Asks a model to sum up messages: a `Summarise` for a compaction. `used` is what that has cost and nobody took."""

    def __init__(self, model: Model, language: Literal["en", "zh"] = "en") -> None:
        self._model = model
        self._language = language
        self._used: Usage | None = None

    def take_usage(self) -> Usage | None:
        """Hand out what summaries have cost since the last time; None if there was none."""
        used, self._used = self._used, None
        return used

    async def __call__(self, items: Sequence[ContextItem]) -> str:
        """Return a summary; raises `CfsError` when there is none, or only half of one."""
        order = Message(role="system", content=_ORDER[self._language])
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
