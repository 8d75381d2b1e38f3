"""Loads the agents of a tree from their folders (B8)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from cfs.errors import CfsError, Unavailable
from cfs.wire import Message
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.guards.report import Report
from cfs_agents.tree.folder import TreeFolder
from cfs_agents.tree.record import BranchRecord, SubAgentRecord, report_of, spec_of, state_of
from cfs_agents.tree.session_context import AgentSpec, MessageManager, SessionMemoryManager, SubSessionContext
from cfs_agents.tree.session_folder import WORKSPACE_FOLDER, SessionFolder, StoredState
from cfs_agents.tree.tool_names import SPAWN

StoredAgent = tuple[SubAgentRecord, SubSessionContext, SessionFolder]


def load_root(folder: TreeFolder, fresh: SubAgentRecord, context: SubSessionContext) -> StoredAgent:
    """Load the root, or return a fresh one if there is none. It goes on with what is not damaged. Blocks."""
    own_folder = folder.main()
    stored = own_folder.load(SubAgentRecord.model_validate)
    if stored is None:
        return fresh, context, own_folder
    record = fresh if stored.status is None else SubAgentRecord.model_validate(stored.status)
    if stored.losses or stored.torn:
        _save_rest(record, stored.messages, own_folder)
    return record, _with(context, stored.messages, spec_of(record)), own_folder


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
    folders = {agent_id: folder.sub(agent_id) for agent_id in folder.subs()}
    stored = {agent_id: state for agent_id, own_folder in folders.items() if (state := _load(own_folder)) is not None}
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
                branch=BranchRecord() if folders[agent_id].has_own_files else None,
            )
        return records[agent_id]

    for record in sorted(map(record_of, stored), key=lambda record: (record.depth, record.created_at)):
        state, own_folder = stored[record.agent_id], folders[record.agent_id]
        above = context_of(record.parent_id if record.parent_id in records else root[0].agent_id)
        if state.losses:
            reasons = [catalogue(language).lost.format(", ".join(state.losses))]
            if record.branch is not None:
                reasons.append(catalogue(language).not_merged.format(own_folder.path / WORKSPACE_FOLDER))
            _end_lost(record, *reasons)
        if state.losses or state.torn:
            with suppress(CfsError):  # then it is lost again at the next start
                _save_rest(record, state.messages, own_folder)
        context = _with(above.child(spec_of(record)), state.messages, spec_of(record))
        yield (record, context, own_folder), bool(state.losses)


def _load(folder: SessionFolder) -> StoredState | None:
    """Read a sub-agent; a folder that cannot be read is one whose files are lost."""
    try:
        return folder.load(SubAgentRecord.model_validate)
    except Unavailable as error:
        folder.warn(error.detail)
        return StoredState(None, [], (folder.path.name,))


def _end_lost(record: SubAgentRecord, *reasons: str) -> None:
    """End the task of an agent whose files are damaged. A report of before stays."""
    report = report_of(record) if record.state == "done" else None
    if report is None:
        report = Report(record.agent_id, "failed")
    record.state, record.report_delivered, record.finish = "done", False, None
    record.report = state_of(replace(report, reasons=(*report.reasons, *reasons)))
    record.tasks += 1  # for its parent this is news


def _with(context: SubSessionContext, messages: list[Message], spec: AgentSpec) -> SubSessionContext:
    manager = MessageManager(messages)
    memory = SessionMemoryManager(manager)
    return replace(context, message_manager=manager, session_memory_manager=memory, agent_config=spec)
