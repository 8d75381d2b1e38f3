"""Converts messages, tool calls and files of an agent to updates of the Agent Client Protocol, and prompts back.

Pure: no I/O. The agent's paths begin with /workspace and /storage; editors get the absolute paths of this machine.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from acp import (
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AudioContentBlock,
    ContentToolCallContent,
    EmbeddedResourceContentBlock,
    FileEditToolCallContent,
    ImageContentBlock,
    ResourceContentBlock,
    SessionInfoUpdate,
    TerminalToolCallContent,
    TextContentBlock,
    TextResourceContents,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolCallStatus,
    ToolKind,
    UsageUpdate,
    UserMessageChunk,
)

from cfs.errors import InvalidRequest
from cfs.wire import Message, ToolCall
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.tools import PathManager, ToolError
from cfs_agents.tools.commands import COMMAND, failure_of
from cfs_agents.tools.files import EDIT_FILE, LIST_DIRECTORY, READ_FILE, SEARCH_FILES, WRITE_FILE
from cfs_agents.tools.paths import directory_path, file_path
from cfs_agents.tools.plan import steps_in

Block: TypeAlias = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)
Update: TypeAlias = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | AgentPlanUpdate
    | ToolCallStart
    | ToolCallProgress
    | SessionInfoUpdate
    | UsageUpdate
)
_Content: TypeAlias = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent

CHANGING = frozenset({WRITE_FILE, EDIT_FILE})
"""Tools that change one file, whose calls show the change."""

_KINDS: Mapping[str, ToolKind] = {
    READ_FILE: "read",
    WRITE_FILE: "edit",
    EDIT_FILE: "edit",
    LIST_DIRECTORY: "search",
    SEARCH_FILES: "search",
    COMMAND: "execute",
}
_TITLES = {READ_FILE: "Read", WRITE_FILE: "Write", EDIT_FILE: "Edit", LIST_DIRECTORY: "List", SEARCH_FILES: "Search"}
_LONGEST_TITLE = 200
_AT_LINE = re.compile(r" at line (\d+): ")


class CallIds:
    """Ids of tool calls that are unique in a session; a model may repeat its own."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._present: dict[str, str] = {}

    def begin(self, call_id: str) -> str:
        """Return the id for a call that begins."""
        editor_id, number = call_id, 1
        while not editor_id or editor_id in self._given:
            number += 1
            editor_id = f"{call_id}-{number}"
        self._given.add(editor_id)
        self._present[call_id] = editor_id
        return editor_id

    def of(self, call_id: str) -> str | None:
        """Return the id that the newest call of the model's id has got; None if it has not begun."""
        return self._present.get(call_id)


def prompt_text(blocks: Sequence[Block], paths: PathManager) -> str:
    """Return a prompt as one text; links and embedded files get the paths that the agent uses.

    Raises `InvalidRequest` for an empty prompt, and for images, sounds and files that are no text.
    """
    text = "".join(_text_of(block, paths) for block in blocks).strip()
    if not text:
        raise InvalidRequest("the prompt is empty")
    return text


def _text_of(block: Block, paths: PathManager) -> str:
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return _agent_path(block.uri, paths)
        case EmbeddedResourceContentBlock(resource=TextResourceContents() as resource):
            return f'\n<file path="{_agent_path(resource.uri, paths)}">\n{resource.text}\n</file>\n'
    raise InvalidRequest(f"only text can be read, and a part of the prompt is of the type {block.type!r}")


def _agent_path(uri: str, paths: PathManager) -> str:
    """Return the agent's path of a `file:` URI; other URIs stay as they are."""
    parts = urlsplit(uri)
    return paths.agent_path(Path(unquote(parts.path))) if parts.scheme == "file" else uri


def place_of(call: ToolCall, paths: PathManager) -> Path | None:
    """Return the file or directory that a call names; None if it names none, or no valid one."""
    path = call.arguments.get("path")
    if not isinstance(path, str) or call.name not in _TITLES:
        return None
    checked = directory_path if call.name in (LIST_DIRECTORY, SEARCH_FILES) else file_path
    try:
        return paths.place_of(checked(path))
    except ToolError:
        return None


def call_started(given: str, call: ToolCall, paths: PathManager, status: ToolCallStatus = "in_progress") -> Update:
    """Return the update for a call that begins."""
    path, line = place_of(call, paths), call.arguments.get("start_line")
    location = ToolCallLocation(path=str(path), line=line if isinstance(line, int) and line >= 0 else None)
    return start_tool_call(
        given,
        title_of(call),
        kind=_KINDS.get(call.name, "other"),
        status=status,
        locations=None if path is None else [location],
        raw_input=dict(call.arguments),
    )


def plan_of(call: ToolCall, *, ok: bool) -> Update | None:
    """Return the update that a call of `update_plan` brings; None for other calls, and for one that has failed."""
    steps = steps_in(call) if ok else ()
    return update_plan([plan_entry(step.text, status=step.status) for step in steps]) if steps else None


def call_finished(
    given: str, call: ToolCall, text: str, paths: PathManager, *, ok: bool, diff: tuple[str | None, str] | None = None
) -> Update:
    """Return the update for a call that has a result; `diff` is the text of its file before and after."""
    path = place_of(call, paths)
    content: list[_Content] = [tool_content(text_block(text))]
    locations = None
    if path is not None and diff is not None:
        before, after = diff
        content = [tool_diff_content(str(path), after, before)]
        line = _AT_LINE.search(text)
        locations = [ToolCallLocation(path=str(path), line=int(line[1]) if line else 1)]
    failed = bool(failure_of(call.name, call.arguments, text, ok=ok))
    status: ToolCallStatus = "failed" if failed else "completed"
    return update_tool_call(given, status=status, content=content, locations=locations, raw_output=text)


def title_of(call: ToolCall) -> str:
    """Return the title of a call in one line: what it does, and to what."""
    arguments = call.arguments
    if call.name == COMMAND:
        title = str(arguments.get("command", "")) or COMMAND
    elif call.name == SEARCH_FILES:
        title = f"Search for {arguments.get('pattern', '')}"
    elif call.name in _TITLES:
        path = str(arguments.get("path", "")).removeprefix("/workspace/")
        title = f"{_TITLES[call.name]} {path or '/workspace'}"
    else:
        title = call.name
    title = " ".join(title.split())
    return title if len(title) <= _LONGEST_TITLE else f"{title[:_LONGEST_TITLE]}..."


_FAILURES = ("Error", "错误", *(catalogue(language).no_result.partition("{")[0] for language in get_args(Language)))
"""How the results of calls begin that have failed, or that have no result because they were cancelled."""


def replay(history: Sequence[Message], paths: PathManager, ids: CallIds, *, ended: bool) -> Iterator[Update]:
    """Yield the updates that show a history. The old text of files is not in it, so edits show their own two texts.

    A call without a result has failed if anything was said after it, or if the last turn has `ended`.
    """
    waiting: dict[str, tuple[str, ToolCall]] = {}
    for message in history:
        if message.role != "tool":
            yield from _failed(waiting)
            waiting = {}
        if message.role == "user":
            yield update_user_message_text(message.content)
        elif message.role == "assistant":
            if message.thinking:
                yield update_agent_thought_text(message.thinking)
            if message.content:
                yield update_agent_message_text(message.content)
            for call in message.tool_calls:
                editor_id = ids.begin(call.id)
                waiting[call.id] = editor_id, call
                yield call_started(editor_id, call, paths, "pending")
        elif message.role == "tool" and (message.tool_call_id or "") in waiting:
            editor_id, called = waiting.pop(message.tool_call_id or "")
            ok = not message.content.startswith(_FAILURES)
            yield call_finished(editor_id, called, message.content, paths, ok=ok, diff=_said_diff(called, ok=ok))
            if (plan := plan_of(called, ok=ok)) is not None:
                yield plan
    if ended:
        yield from _failed(waiting)


def _failed(waiting: Mapping[str, tuple[str, ToolCall]]) -> Iterator[Update]:
    return (update_tool_call(editor_id, status="failed") for editor_id, _ in waiting.values())


def _said_diff(call: ToolCall, *, ok: bool) -> tuple[str | None, str] | None:
    arguments: Mapping[str, Any] = call.arguments
    names = {WRITE_FILE: ("", "content"), EDIT_FILE: ("old", "new")}.get(call.name)
    if names is None or not ok:
        return None
    before, after = (arguments.get(name) for name in names)
    return (before if isinstance(before, str) else None, after) if isinstance(after, str) else None
