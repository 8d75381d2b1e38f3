"""The tool `sync_context`: the model rewrites its context window and so decides what stays in its prompt (A4)."""

import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

from cfs_agents.context import TokenCounter
from cfs_agents.tools import (
    Tool,
    ToolError,
    tool,
)
from cfs_agents.tree.directory import HISTORY
from cfs_agents.tree.tool_names import SYNC_CONTEXT

WINDOW_TOKENS = 4_000
WINDOW_BYTES = 64 * 1024

_CURRENT_TASK = re.compile(r"^#{1,6}[ \t]*(current task|当前任务)", re.IGNORECASE | re.MULTILINE)
_DESCRIPTION = (
    "Replace the context window by a new text and empty the conversation. The old window is archived."
    " Make it the only call of the reply."
)


class ContextSynchronizer:
    """Checks new context windows. The recorder takes an accepted one by `take` and puts it in place."""

    def __init__(self, counter: TokenCounter, *, most_tokens: int = WINDOW_TOKENS) -> None:
        self._counter = counter
        self._most_tokens = most_tokens
        self._taken: str | None = None

    def tool(self) -> Tool:
        """Return the tool."""
        return tool(_DESCRIPTION, name=SYNC_CONTEXT)(self.sync_context)

    def take(self) -> str | None:
        """Return the accepted window, once."""
        taken, self._taken = self._taken, None
        return taken

    async def sync_context(self, new_context_content: Annotated[str, "the whole window, in Markdown"]) -> str:
        """Accept a window, or raise `ToolError` with the reason."""
        self._taken = None
        await self._judge(new_context_content)
        self._taken = new_context_content
        return "the new context window is in place; the old one is archived in " + HISTORY

    async def _judge(self, window: str) -> None:
        """Raise `ToolError` for a window that is empty, too large, or has no heading for the task."""
        if not window.strip():
            raise ToolError("the new context window is empty: write all of it, beginning with '# Current Task'")
        try:
            size = len(window.encode())
        except UnicodeEncodeError:
            raise ToolError("the new context window is no text in UTF-8: leave the broken characters out") from None
        if size > WINDOW_BYTES:
            raise ToolError(_too_large(f"{size:,} bytes", f"{WINDOW_BYTES:,}"))
        if not _CURRENT_TASK.search(window):
            raise ToolError("the new context window has no heading '# Current Task': say first what the task is")
        tokens = (await self._counter.count([window]))[0]
        if tokens > self._most_tokens:
            raise ToolError(_too_large(f"{tokens:,} tokens", f"{self._most_tokens:,}"))


def _too_large(size: str, limit: str) -> str:
    return (
        f"the new context window has {size}, and {limit} are the most: keep what the next steps need, and write the"
        " rest to files below /storage/documents first"
    )


def archive_path(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> str:
    """Return a new path in the history; paths sort by time."""
    return f"{HISTORY}/context_window_{now():%Y%m%d_%H%M%S_%f}_{secrets.token_hex(3)}.md"
