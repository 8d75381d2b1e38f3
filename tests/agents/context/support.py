"""What the tests of the context share."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cfs.wire import Message, ToolCall
from cfs_agents.context import ContextFileSystem, ContextItem, Conversation, ItemType, WorkingContext
from cfs_filesystem import RouterFileSystem


def user(content: str = "do it") -> Message:
    """A user's message."""
    return Message(role="user", content=content)


def assistant(content: str = "", *calls: ToolCall) -> Message:
    """A message of the model, with calls or without."""
    return Message(role="assistant", content=content, tool_calls=calls)


def call(call_id: str = "call_1", name: str = "shell", **arguments: Any) -> ToolCall:
    """A call of a tool."""
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(content: str, call_id: str = "call_1", name: str = "shell") -> Message:
    """What a tool answered."""
    return Message(role="tool", content=content, tool_call_id=call_id, name=name)


def item(message: Message, item_type: ItemType | None = None, **flags: Any) -> ContextItem:
    """An item of a message."""
    return ContextItem.of(message, item_type, **flags)


def conversation(*messages: Message) -> Conversation:
    """A context of messages, as it grows."""
    context = Conversation()
    for message in messages:
        context = context.with_item(item(message))
    return context


def add_call(context: WorkingContext, content: str, call_id: str = "call_1", name: str = "shell") -> ContextItem:
    """Let the model call a tool, and the tool answer; return the answer's item."""
    context.add(assistant("", call(call_id, name)))
    return context.add(result(content, call_id, name))


def words(count: int, word: str = "word") -> str:
    """A text in lines, of about so many tokens as the estimate goes."""
    line = (f"{word} " * 12).strip()
    return "\n".join([line] * (count * 4 // (len(line) + 1) + 1))


def read_as_tool(files: ContextFileSystem, path: str) -> str:
    """Read a path of a placeholder through a handle with nothing but the granted rights, beside other files."""
    reader, grant = files.reader()
    handle = RouterFileSystem({grant["prefix"]: reader}).create_handle([grant])
    return handle.read_file(path)


def paths_below(root: Path) -> list[str]:
    """Every file below a folder."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


class ManualClock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(microseconds=1)  # no two items at one time
        return self.time

    def advance(self, **by: float) -> None:
        """Let time pass."""
        self.time += timedelta(**by)


class ScriptedSummary:
    """Sums up with prepared texts, and remembers what it was asked to sum up."""

    def __init__(self, *texts: str | Exception) -> None:
        self.texts = list(texts)
        self.asked: list[Sequence[ContextItem]] = []

    async def __call__(self, items: Sequence[ContextItem]) -> str:
        self.asked.append(items)
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        return text
