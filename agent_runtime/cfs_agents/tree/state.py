"""The state of a sub-agent: the context that its children inherit, its files, and their writer (B3, B4, B8)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from cfs.api import life_in
from cfs.errors import CfsError, Unavailable
from cfs.wire import LEASE_SECONDS, Message, SessionInfo, ToolCall, Usage
from cfs_agents.base.disk import Warn
from cfs_agents.base.events import Finished, ToolResult
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.base.threads import to_the_end
from cfs_agents.base.usage import added
from cfs_agents.context import OFFLOAD_THRESHOLD, Change, Context, ContextFileSystem, ContextItem, TokenCounter
from cfs_agents.guards.report import WAIT, Report
from cfs_agents.loop.config import MAX_ROUNDS
from cfs_agents.loop.recorder import NewContext
from cfs_agents.tools import Ask, CommandMode, Tool, command_mode
from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.files import LIST_DIRECTORY, READ_FILE, SEARCH_FILES, WORKSPACE, WRITE_FILE
from cfs_agents.tree.prompts import PromptForm
from cfs_agents.tree.session_files import SessionFolder, StoredState, TreeFolder
from cfs_filesystem import FsHandle

DEFAULT_FILE_TOOLS = (READ_FILE, WRITE_FILE, LIST_DIRECTORY, COMMAND)
"""The tools besides those of Fibre, unless others are configured: prompt and tools must fit into a small context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FibreConfig:
    """The configuration of a tree. Times are in seconds, budgets in tokens; None is no limit.

    `prompt` is the form of the system prompt's fixed part: by default the short one if the model's context window is
    under 8,192 tokens, else the full one. `instruction` is the root's own part of its system prompt, `common` is added
    for all agents. `max_turns`, `timeout` and `budget` hold for an agent unless its parent gives others; those of the
    root begin with `root_`. `tree_budget` is what all agents of the tree may use together for one task of the root: by
    default 40 times the model's context window; 0 is no limit. `max_depth` counts the levels below the root,
    `max_alive` the sub-agents at work, and `max_agents` those that are started during one task of the root.
    `file_tools` names the tools besides those of Fibre, and `tools` are further ones. With `commands` agents have a
    shell: anyone who can write to their sessions can then run commands; `CommandMode.ASK` awaits `ask` before each
    command, one at a time, and asks in the agent's session on the server; the first answer counts, and without a server
    it needs `ask`. Commands get the harmless part of the environment, and `keep_variables`. Results above
    `offload_token_threshold` tokens go to files below `.cfs` in the workspace, where the agent's tools can read them.
    `workflow` is shared by all agents. With `look_alikes` files may be created beside those whose names look the same.
    With `publish` the files are also in the workspace of the root's session on the server, while agents work. `warn` is
    called with one sentence for each file of an agent that is damaged.
    """

    language: Language = "en"
    prompt: PromptForm | None = None
    instruction: str = ""
    common: str = ""
    user_id: str = "user"
    max_depth: int = 2
    max_alive: int = 64
    max_agents: int = 64
    max_turns: int = 10
    timeout: float | None = 600.0
    budget: int | None = None
    root_max_turns: int = MAX_ROUNDS
    root_timeout: float | None = None
    tree_budget: int | None = None
    lock_seconds: float = 120.0
    tick_seconds: float = 0.2
    publish_seconds: float = 2.0
    lease_seconds: float = LEASE_SECONDS
    context_tokens: int | None = None
    offload_enabled: bool = True
    offload_token_threshold: int = OFFLOAD_THRESHOLD
    counter: TokenCounter | None = None
    file_tools: Sequence[str] = DEFAULT_FILE_TOOLS
    commands: CommandMode = CommandMode.NONE
    ask: Ask | None = None
    keep_variables: frozenset[str] = frozenset()
    tools: Iterable[Tool | Callable[..., Any]] = ()
    workflow: Mapping[str, Any] = field(default_factory=dict)
    publish: bool = True
    look_alikes: bool = False
    warn: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Check it."""
        object.__setattr__(self, "commands", command_mode(self.commands, self.ask, elsewhere=True))


_BUDGET_CONTEXTS = 40
"""The default budget of a tree: so many context windows. Each step of an agent reads one at most."""
_USUAL_BUDGET = 5_000_000
"""The default budget if the model does not say its context window."""


def tree_budget_of(config: FibreConfig, context_window: int | None) -> int | None:
    """Return the tokens that a tree may use for one task of its root; None is no limit."""
    if config.tree_budget is not None:
        return config.tree_budget or None
    return _BUDGET_CONTEXTS * context_window if context_window else _USUAL_BUDGET


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

    def dump(self, context: Context) -> list[dict[str, Any]]:
        """Return a context as JSON values. If the message of an item is one of the session, only its place is stored.

        The system prompt is left out: it is made again.
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
    """The definition of an agent: its name, its role in one line, its instruction, and its limits (B2).

    `requested_name` is the name that its parent asked for, if that was taken.
    """

    name: str
    role_description: str = ""
    system_instruction: str = ""
    task_goal: str = ""
    max_turns: int = 10
    timeout: float | None = None
    budget: int | None = None
    requested_name: str = ""


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


VERSION = "1.0"

RecordedState = Literal["new", "working", "done"]
"""The stages of a task on disk: not started; started and not reported; reported."""


_BY_ALIAS = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)


def _saved_as(name: str, default: Any = None) -> Any:
    """Declare a field whose name in `session_status.json` is another one."""
    return Field(default=default, validation_alias=name, serialization_alias=name)


class InboxMessage(BaseModel):
    """A message that waits for an agent: of another agent, or the notification that a child is done.

    `id` is that of the call which sent it, or of the report, so that no message is delivered twice.
    """

    model_config = ConfigDict(frozen=True, **_BY_ALIAS)

    id: str
    sender: str
    content: str
    is_notification: bool = _saved_as("notice", False)


class LeaseRecord(BaseModel):
    """A claimed turn of the server: its id, the secret of the claim, and the message that began the turn.

    `life` distinguishes sessions of one name, because a session may be lost and created again. `traceparent` is the
    trace of the turn, if the server records one.
    """

    model_config = ConfigDict(frozen=True)

    turn: str
    claim: str
    content: str
    life: str | None = None
    traceparent: str | None = None


def _as_list(value: object) -> object:
    """Read the format of earlier versions, which ran calls one after the other."""
    return [] if value is None else [value] if isinstance(value, str) else value


class SubAgentRecord(BaseModel):
    """One sub-agent in `session_status.json`: its identity, its rights, and the state of its task.

    `begun` are the ids of started calls without a result. `asking` is the one of them that waits for a person, so that
    nothing of it has happened. `items` are those of the context: a whole item, or `{"at": n, ...}` for an item whose
    message is the n-th of `messages.json`. `messages` is the number of messages in that file. `requested_name` is the
    name that its parent asked for, and `order` the number of the root's task during which it was started.
    `spent_before` are the tokens that it and those below it had used before its present task. `doubted` is an answer of
    the root that did not agree with the files. `life` and `settings` are those of the session on the server, and `gone`
    says that this session was deleted or renamed. Times are in seconds since the epoch.
    """

    model_config = _BY_ALIAS

    schema_version: str = VERSION
    session_id: str
    agent_id: str
    agent_name: str
    parent_id: str | None = None
    parent_session_id: str | None = None
    depth: int = 0
    role_description: str = ""
    system_instruction: str = ""
    task_goal: str = ""
    max_turns: int = 10
    timeout: float | None = None
    budget: int | None = None
    spawned_by: str | None = None
    requested_name: str = ""
    order: int = 0
    tasks: int = 0
    spent_before: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    state: RecordedState = "new"
    seconds_used: float = 0.0
    rounds: int = 0
    usage: Usage = Usage()
    lease: LeaseRecord | None = _saved_as("held")
    begun: Annotated[list[str], BeforeValidator(_as_list)] = []
    asking: str = ""
    broken: dict[str, str] = Field(default_factory=dict)
    inbox: list[InboxMessage] = Field(default_factory=list)
    seen: list[str] = Field(default_factory=list)
    nudges: list[str] = _saved_as("asked", [])
    doubted: str | None = None
    finish: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    report_delivered: bool = _saved_as("heard", True)
    memory: dict[str, Any] = Field(default_factory=dict)
    messages: int = 0
    items: list[dict[str, Any]] = Field(default_factory=list)
    life: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    gone: str | None = None

    @property
    def unfinished(self) -> bool:
        """Whether a task was interrupted, or the end of its turn."""
        return self.state != "done" or self.lease is not None

    def deliver(self, message: InboxMessage) -> bool:
        """Put a message into the inbox unless it was there before; return whether it is new."""
        if message.id in self.seen:
            return False
        self.seen.append(message.id)
        self.inbox.append(message)
        return True


#
# It writes each step to disk first, then to the session and to the readers of the chunks.

SPAWN = "sys_spawn_agent"
SEND = "sys_send_message"
FINISH = "sys_finish_task"
LOCK = "sys_lock_file"
UNLOCK = "sys_unlock_file"

REPEATABLE = frozenset({SPAWN, SEND, WAIT, FINISH, LOCK, UNLOCK, READ_FILE, WRITE_FILE, LIST_DIRECTORY, SEARCH_FILES})
"""Calls that may be made twice: after a kill in their middle they are simply made again."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """The stored state of a session, without the running turn: enough to create the session again.

    `life` distinguishes sessions of one name; None before the first is created.
    """

    messages: Sequence[Message] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    life: str | None = None


_IDENTITY = ("session_id", "agent_id", "agent_name", "system_instruction", "max_turns", "timeout", "budget")


class SubAgentRecorder:
    """Stores one sub-agent (a `Recorder`) and tracks the required content of its server session.

    `stored` gets each message that is on disk; `before_round` is awaited before each model request, `before_calls`
    before calls run, and `after_call` before a result is sent.
    """

    def __init__(
        self,
        record: SubAgentRecord,
        context: SubSessionContext,
        folder: SessionFolder,
        *,
        stored: Callable[[Message], None],
        before_round: Callable[[], Awaitable[None]],
        before_calls: Callable[[Sequence[ToolCall]], Awaitable[None]],
        after_call: Callable[[ToolCall], Awaitable[None]],
        language: Language = "en",
    ) -> None:
        self.record = record
        self.adopted = False
        """Whether the stored conversation has been replaced by that of the session."""
        self.current: Callable[[], Context] | None = None
        self._messages = context.message_manager
        self._memory = context.session_memory_manager
        self._folder = folder
        self._stored = stored
        self._before_round = before_round
        self._before_calls = before_calls
        self._after_call = after_call
        self._language: Language = language
        self._saving = asyncio.Lock()
        self._last: str | None = None
        self._unsent: list[Message] = []
        """Calls that are stored together with their beginning."""

    async def save(self, *, wait: bool = True) -> None:
        """Store the sub-agent as it is now; see `SessionFolder.save`."""
        async with self._saving:
            record = self.record
            record.updated_at = time.time()
            record.messages = len(self._messages)
            if self.current is not None:
                record.items = self._memory.dump(self.current())
            status, messages = record.model_dump(mode="json"), self._messages.messages
            rest = record.state == "done"
            await to_the_end(lambda: self._folder.save(status, messages, rest=rest, wait=wait))

    async def add(self, message: Message) -> None:
        """Store a message that is in the context already."""
        await self._keep(message)
        self._stored(message)

    async def _keep(self, message: Message, *, wait: bool = True) -> None:
        self._last = None
        self._messages.add(message)
        await self.save(wait=wait)
        self._send_stored()

    # -- its session ----------------------------------------------------------------------------------------------

    def session(self) -> StoredSession:
        """Return the stored state of its session, up to the message of the running turn."""
        messages, lease = list(self._messages.messages), self.record.lease
        if lease is not None and (place := self._place_of(lease.content)) is not None:
            messages = messages[:place]
        if messages and messages[-1].role == "user":  # its turn was over when the next one began
            messages.append(Message(role="assistant", content=catalogue(self._language).superseded))
        return StoredSession(messages, self.record.settings, self.record.life)

    def session_opened(self, life: str, settings: Mapping[str, Any]) -> None:
        """Take over the identity and the settings of its session; they are written with the next step."""
        self.record.life, self.record.settings, self.record.gone = life, dict(settings), None

    async def session_gone(self, reason: str) -> None:
        """Store that its session was deleted or renamed."""
        if self.record.gone is None:
            self.record.gone = reason
            await self.save()

    def is_unknown(self, info: SessionInfo) -> bool:
        """Whether this agent, the root of a tree, knows nothing of its session, or the conversation of another one."""
        record = self.record
        if record.parent_id is not None or record.life == life_in(info.etag):
            return False
        return info.origin is not None if record.life is not None else not self._messages

    async def adopt(self, history: Sequence[Message]) -> None:
        """Take over the history of its session. A conversation of another session is put aside."""
        record = self.record
        if self._messages.messages:
            await to_the_end(self._folder.put_messages_aside)
            fresh = SubAgentRecord(
                **{name: getattr(record, name) for name in _IDENTITY}, state="done", created_at=time.time()
            )
            for name in SubAgentRecord.model_fields:
                setattr(record, name, getattr(fresh, name))
        self._messages.replace_all(history)
        context = self._memory.load((), 0)
        self.current, self.adopted = lambda: context, True
        await self.save()

    async def turn_retaken(self, lease: LeaseRecord) -> None:
        """Store that the server had lost the turn, and that this lease replaces it."""
        self.record.lease = lease
        await self.save()

    def messages_of_turn(self) -> list[Message]:
        """Return the messages that answer the message of its turn; an answer at the end waits for the turn's end."""
        lease, messages = self.record.lease, self._messages.messages
        if lease is None or (place := self._place_of(lease.content)) is None:
            return []
        answers = list(messages[place + 1 :])
        if answers and answers[-1].role == "assistant" and not answers[-1].tool_calls:
            answers.pop()
        return answers

    def _place_of(self, content: str) -> int | None:
        """Return the index of the last user message with this content."""
        messages = self._messages.messages
        places = range(len(messages) - 1, -1, -1)
        return next((n for n in places if messages[n].role == "user" and messages[n].content == content), None)

    # -- the steps of the loop ------------------------------------------------------------------------------------

    async def before_round(self) -> None:
        """Let the sub-agent add the messages that have arrived."""
        await self._before_round()

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Store a message of the user or of the model."""
        record = self.record
        record.begun, record.asking, record.broken = [], "", dict(broken)
        if usage is not None:
            record.rounds += 1
            record.usage = added(record.usage, usage)
        if item.item_id == self._last:  # the rest of a reply that was cut off
            self._messages.replace_last(item.message)
            await self.save()
            self._stored(item.message)
        elif not broken and any(call.name not in REPEATABLE for call in item.message.tool_calls[:1]):
            self._messages.add(item.message)
            self._unsent.append(item.message)
        else:
            await self.add(item.message)
        self._last = item.item_id

    async def shortened(self, change: Change) -> None:  # noqa: ARG002 - as the protocol has it
        """Store the shortened conversation."""
        await self.save()

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Store that calls are about to run, if running one of them twice would matter."""
        self.record.begun = [call.id for call in calls]
        if any(call.name not in REPEATABLE for call in calls):
            await self.save()
            self._send_stored()
        await self._before_calls(calls)

    def _send_stored(self) -> None:
        """Send the messages that are on disk by now."""
        for message in self._unsent:
            self._stored(message)
        self._unsent.clear()

    async def done(
        self,
        call: ToolCall,
        result: ToolResult,  # noqa: ARG002 - the signature is the protocol's
        item: ContextItem,
        later: Sequence[ToolCall],  # noqa: ARG002
    ) -> NewContext | None:
        """Store a result."""
        self.record.begun = [each for each in self.record.begun if each != call.id]
        await self._keep(item.message, wait=False)
        try:
            await self._after_call(call)
        finally:
            self._stored(item.message)
        return None

    async def ended(self, end: Finished) -> None:
        """Do nothing: the sub-agent interprets the end."""


_REPORT = TypeAdapter(Report)

StoredAgent = tuple[SubAgentRecord, SubSessionContext, SessionFolder]


def load_root(folder: TreeFolder, fresh: SubAgentRecord, context: SubSessionContext) -> StoredAgent:
    """Load the root, or return a fresh one if there is none. It goes on with what is not damaged. Blocks."""
    place = folder.main()
    stored = place.load(SubAgentRecord.model_validate)
    if stored is None:
        return fresh, context, place
    record = fresh if stored.status is None else SubAgentRecord.model_validate(stored.status)
    if stored.losses or stored.torn:
        _save_rest(record, stored.messages, place)
    return record, _with(context, stored.messages, spec_of(record)), place


def _save_rest(record: SubAgentRecord, messages: Sequence[Message], folder: SessionFolder) -> None:
    """Store what is left of an agent, so that its loss is reported once. Calls without a result may have happened."""
    results = {message.tool_call_id for message in messages if message.role == "tool"}
    calls = [call.id for message in messages for call in message.tool_calls]
    record.begun, record.asking = [call for call in calls if call not in results], ""
    folder.save(record.model_dump(mode="json"), messages, rest=True)


def load_sub_agents(
    folder: TreeFolder, root: StoredAgent, context_of: Callable[[str], SubSessionContext], language: Language
) -> Iterator[tuple[StoredAgent, bool]]:
    """Load the sub-agents, parents first, and whether each is lost because a file of it is damaged. Blocks.

    `context_of` returns the context of one that was loaded before. A lost one is done, and its report says so. A folder
    without a state was left by a kill in the middle of a spawn, and is skipped.
    """
    places = {agent_id: folder.sub(agent_id) for agent_id in folder.subs()}
    stored = {agent_id: state for agent_id, place in places.items() if (state := _load(place)) is not None}
    records = {root[0].agent_id: root[0]} | {
        agent_id: SubAgentRecord.model_validate(state.status)
        for agent_id, state in stored.items()
        if state.status is not None
    }
    spawned = {
        message.content: agent_id
        for agent_id, messages in [
            (root[0].agent_id, root[1].message_manager.messages),
            *((agent_id, state.messages) for agent_id, state in stored.items()),
        ]
        for message in messages
        if message.role == "tool" and message.name == SPAWN
    }

    def record_of(agent_id: str) -> SubAgentRecord:
        """Return a record, or make one for an agent whose status is lost: below the agent that started it."""
        if agent_id not in records:
            parent = record_of(spawned.pop(agent_id, root[0].agent_id))
            records[agent_id] = SubAgentRecord(
                session_id=f"{parent.session_id}/{agent_id}",
                agent_id=agent_id,
                agent_name=agent_id,
                requested_name=agent_id,
                parent_id=parent.agent_id,
                parent_session_id=parent.session_id,
                depth=parent.depth + 1,
                order=root[0].tasks,
                state="working",
            )
        return records[agent_id]

    for record in sorted(map(record_of, stored), key=lambda record: (record.depth, record.created_at)):
        state, place = stored[record.agent_id], places[record.agent_id]
        above = context_of(record.parent_id if record.parent_id in records else root[0].agent_id)
        if state.losses:
            _end_lost(record, catalogue(language).lost.format(", ".join(state.losses)))
        if state.losses or state.torn:
            with suppress(CfsError):  # then it is lost again at the next start
                _save_rest(record, state.messages, place)
        yield (record, _with(above.child(spec_of(record)), state.messages, spec_of(record)), place), bool(state.losses)


def _load(folder: SessionFolder) -> StoredState | None:
    """Read a sub-agent; a folder that cannot be read is one whose files are lost."""
    try:
        return folder.load(SubAgentRecord.model_validate)
    except Unavailable as error:
        folder.warn(error.detail)
        return StoredState(None, [], (folder.path.name,))


def _end_lost(record: SubAgentRecord, reason: str) -> None:
    """End the task of an agent whose files are damaged. A report of before stays."""
    report = report_of(record) if record.state == "done" else None
    if report is None:
        report = Report(record.agent_id, "failed")
    record.state, record.report_delivered, record.finish = "done", False, None
    record.report = state_of(replace(report, reasons=(*report.reasons, reason)))
    record.tasks += 1  # for its parent this is news


def spec_of(record: SubAgentRecord) -> AgentSpec:
    """Return the definition of a stored agent."""
    return AgentSpec(
        record.agent_name,
        record.role_description,
        record.system_instruction,
        record.task_goal,
        record.max_turns,
        record.timeout,
        record.budget,
    )


def report_of(record: SubAgentRecord) -> Report | None:
    """Return the report in a record."""
    return _REPORT.validate_python(record.report) if record.report is not None else None


def state_of(report: Report) -> dict[str, object]:
    """Return a report as JSON values."""
    state: dict[str, object] = _REPORT.dump_python(report, mode="json")
    return state


def _with(context: SubSessionContext, messages: list[Message], spec: AgentSpec) -> SubSessionContext:
    manager = MessageManager(messages)
    memory = SessionMemoryManager(manager)
    return replace(context, message_manager=manager, session_memory_manager=memory, agent_config=spec)
