"""The context of a session, and the part that a child inherits (B4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cfs.wire import Message
from cfs_agents.base.repairs import Warn
from cfs_agents.context import ContextFileSystem, ContextItem, Conversation
from cfs_agents.tools.paths import WORKSPACE
from cfs_filesystem import FsHandle

COPIED = ("current_time", "file_workspace", "file_permission", "user_id")
"""The entries of a system context that a child inherits unchanged."""
_OFFLOADED = ".cfs/offloaded"
_SHOWN_OFFLOADED = f"{WORKSPACE}/{_OFFLOADED}"


class MessageManager:
    """All messages of one session, in order. Messages are never removed."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._messages = list(messages)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """Append a message."""
        self._messages.append(message)

    def replace_last(self, message: Message) -> None:
        """Replace the last message: a truncated reply has been continued."""
        self._messages[-1] = message

    def replace_all(self, messages: Sequence[Message]) -> None:
        """Begin anew with these messages."""
        self._messages = list(messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages."""
        return tuple(self._messages)


class SessionMemoryManager:
    """Stores the context of a model: its items, most of which are messages of the session."""

    def __init__(self, messages: MessageManager) -> None:
        self._messages = messages
        self._dumped: dict[str, tuple[ContextItem, dict[str, Any]]] = {}

    def dump(self, context: Conversation) -> list[dict[str, Any]]:
        """Return a context as JSON values. If the message of an item is one of the session, only its place is stored.

        The system prompt is left out: it is made again.
        """
        indices = {id(message): index for index, message in enumerate(self._messages.messages)}
        dumped: dict[str, tuple[ContextItem, dict[str, Any]]] = {}
        for item in context:
            if item.item_type == "system_prompt":
                continue
            cached = self._dumped.get(item.item_id)
            same = cached is not None and cached[0] is item  # items never change, and messages never move
            dumped[item.item_id] = cached if cached is not None and same else (item, _described(item, indices))
        self._dumped = dumped
        return [state for _, state in dumped.values()]

    def load(self, items: Sequence[Mapping[str, Any]], counted: int) -> Conversation:
        """Return the stored context, with the messages after the first `counted`."""
        messages = self._messages.messages
        loaded = []
        for state in items:
            values = dict(state)
            at = values.pop("at", None)
            if at is None:
                loaded.append(ContextItem.load(values))
            else:
                loaded.append(ContextItem(message=messages[at], **values))
        context = Conversation(tuple(loaded))
        for message in messages[counted:]:
            context = context.with_item(ContextItem.of(message))
        return context


def _described(item: ContextItem, indices: Mapping[int, int]) -> dict[str, Any]:
    state = item.dump()
    if (index := indices.get(id(item.message))) is not None:
        state["at"] = index
        del state["message"]
    return {key: value for key, value in state.items() if value not in (None, False, 0) or key == "at"}


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The definition of an agent: its name, its role in one line, its instruction, and its limits (B2).

    `requested_name` is the name that its parent asked for, if that was taken. An `isolated` one works in a copy of its
    parent's files.
    """

    name: str
    role_description: str = ""
    system_instruction: str = ""
    task_goal: str = ""
    max_turns: int = 10
    timeout: float | None = None
    budget: int | None = None
    requested_name: str = ""
    isolated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubSessionContext:
    """The context of one sub-agent. `child` defines which parts a child owns and which it shares.

    `workflow_manager` is one object for the whole tree. `files` is the handle by which the sub-agent's tools reach the
    shared files. `system_context` is the content of the system prompt.
    """

    session_id: str
    agent_config: AgentSpec
    message_manager: MessageManager
    session_memory_manager: SessionMemoryManager
    user_id: str
    workspace_root: Path
    memory_root: Path
    workflow_manager: Any
    agent_workspace: Path
    files: FsHandle
    system_context: Mapping[str, Any] = field(default_factory=dict)

    def child(self, agent_config: AgentSpec, available_agents: Sequence[str] = ()) -> "SubSessionContext":
        """Return the context of a child: its session and memory are its own, its place and user the same (B4).

        `parent_task` is the task that its parent gave it. Its file grants are those of its parent, and end with them
        (G7).
        """
        messages = MessageManager()
        copied = {key: self.system_context[key] for key in COPIED if key in self.system_context}
        added = {
            "available_agents": list(available_agents),
            "parent_task": agent_config.task_goal,
            "parent_session_id": self.session_id,
        }
        return SubSessionContext(
            session_id=f"{self.session_id}/{agent_config.name}",
            agent_config=agent_config,
            message_manager=messages,
            session_memory_manager=SessionMemoryManager(messages),
            user_id=self.user_id,
            workspace_root=self.workspace_root,
            memory_root=self.memory_root,
            workflow_manager=self.workflow_manager,
            agent_workspace=self.agent_workspace,
            files=self.files.narrow(self.files.grants),
            system_context=copied | added,
        )

    def offloaded(self, warn: Warn) -> ContextFileSystem:
        """Return the store of its long results: among the shared files, where its tools can read them (O1).

        `warn` gets a sentence if files of it are damaged.
        """
        return ContextFileSystem(
            self.agent_workspace / _OFFLOADED,
            self.agent_config.name,
            shown_as=_SHOWN_OFFLOADED,
            trusted=self.agent_workspace,
            warn=warn,
        )


def system_context_of_root(user_id: str, file_workspace: str, file_permission: str) -> dict[str, Any]:
    """Return the system context of the root, from which children inherit."""
    return {
        "current_time": datetime.now(UTC).isoformat(timespec="seconds"),
        "file_workspace": file_workspace,
        "file_permission": file_permission,
        "user_id": user_id,
    }
