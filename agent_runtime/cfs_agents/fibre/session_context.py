"""What a strand knows of itself and of where it works; what of it a child gets (B4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cfs.wire import Message
from cfs_agents.context import Context, ContextFileSystem, ContextItem
from cfs_agents.tools.paths import WORKSPACE
from cfs_filesystem import FsHandle

COPIED = ("current_time", "file_workspace", "file_permission", "user_id")
"""What of a system context a child gets as its parent has it."""
_OFFLOADED = ".cfs/offloaded"
_SHOWN_OFFLOADED = f"{WORKSPACE}/{_OFFLOADED}"


class MessageManager:
    """All messages of one session, in order; nothing leaves it."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._messages = list(messages)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """Append a message."""
        self._messages.append(message)

    def replace_last(self, message: Message) -> None:
        """Put a message into the place of the last one: a reply that was cut off has been gone on with."""
        self._messages[-1] = message

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them."""
        return tuple(self._messages)


class SessionMemoryManager:
    """What of a session its model sees, on disk: items of a context, most of which are messages of the session."""

    def __init__(self, messages: MessageManager) -> None:
        self._messages = messages
        self._dumped: dict[str, tuple[ContextItem, dict[str, Any]]] = {}

    def dump(self, context: Context) -> list[dict[str, Any]]:
        """Describe a context; where an item's message is one of the session, its place stands for it.

        The system prompt is left out, as it is made anew.
        """
        places = {id(message): place for place, message in enumerate(self._messages.messages)}
        dumped: dict[str, tuple[ContextItem, dict[str, Any]]] = {}
        for item in context:
            if item.item_type == "system_prompt":
                continue
            known = self._dumped.get(item.item_id)
            same = known is not None and known[0] is item  # items never change, and messages never move
            dumped[item.item_id] = known if known is not None and same else (item, _described(item, places))
        self._dumped = dumped
        return [state for _, state in dumped.values()]

    def load(self, items: Sequence[Mapping[str, Any]], counted: int) -> Context:
        """Make the context that was described, and what came after the first so many messages."""
        messages = self._messages.messages
        loaded = []
        for state in items:
            values = dict(state)
            at = values.pop("at", None)
            if at is None:
                loaded.append(ContextItem.load(values))
            else:
                loaded.append(ContextItem(message=messages[at], **values))
        context = Context(tuple(loaded))
        for message in messages[counted:]:
            context = context.with_item(ContextItem.of(message))
        return context


def _described(item: ContextItem, places: Mapping[int, int]) -> dict[str, Any]:
    state = item.dump()
    if (place := places.get(id(item.message))) is not None:
        state["at"] = place
        del state["message"]
    return {key: value for key, value in state.items() if value not in (None, False, 0) or key == "at"}


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What makes an agent what it is: its name, its role in a line, its instruction, and its limits (B2)."""

    name: str
    role_description: str = ""
    system_instruction: str = ""
    task_goal: str = ""
    max_turns: int = 10
    timeout: float | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """One strand's own and shared things. `child` says which of them a child has of its own, and which it shares.

    `workflow_manager` is one object for the whole tree. `files` is the handle by which the strand's tools reach the
    shared files. `system_context` is what stands in the system prompt.
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

    def child(self, agent_config: AgentSpec, available_agents: Sequence[str] = ()) -> "SessionContext":
        """Make the context of a child: its session and minds are its own, place and user are the same (B4).

        Its rights to files are those of its parent, and end with them (G7).
        """
        messages = MessageManager()
        copied = {key: self.system_context[key] for key in COPIED if key in self.system_context}
        added = {
            "available_agents": list(available_agents),
            "parent_task": self.agent_config.task_goal,
            "parent_session_id": self.session_id,
        }
        return SessionContext(
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

    def offloaded(self) -> ContextFileSystem:
        """Return where its long results are put: among the shared files, where its tools can read them (O1)."""
        return ContextFileSystem(
            self.agent_workspace / _OFFLOADED,
            self.agent_config.name,
            shown_as=_SHOWN_OFFLOADED,
            trusted=self.agent_workspace,
        )


def system_context_of_root(user_id: str, file_workspace: str, file_permission: str) -> dict[str, Any]:
    """Make the system context that all others are copied from."""
    return {
        "current_time": datetime.now(UTC).isoformat(timespec="seconds"),
        "file_workspace": file_workspace,
        "file_permission": file_permission,
        "user_id": user_id,
    }
