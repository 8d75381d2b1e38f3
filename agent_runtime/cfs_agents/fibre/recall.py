"""Making strands of what is on disk (B8)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from pydantic import TypeAdapter

from cfs.wire import Message
from cfs_agents.fibre.reports import Report
from cfs_agents.fibre.session_context import AgentSpec, MessageManager, SessionContext, SessionMemoryManager
from cfs_agents.fibre.state import StrandRecord
from cfs_agents.fibre.storage import SessionFolder, TreeFolder

_REPORT = TypeAdapter(Report)

Made = tuple[StrandRecord, SessionContext, SessionFolder]


def recall_root(folder: TreeFolder, fresh: StrandRecord, context: SessionContext) -> Made:
    """Read the root, or take it as it is when there is none yet. Blocks."""
    place = folder.main()
    kept = place.load()
    if kept is None:
        return fresh, context, place
    record, messages = kept
    return record, _with(context, messages, spec_of(record)), place


def recall_subs(folder: TreeFolder, context_of: Callable[[str], SessionContext]) -> Iterator[Made]:
    """Read the sub-agents, parents first. `context_of` returns the context of one that came before. Blocks.

    A folder without a status is what a kill has left of a spawn that had not happened.
    """
    found = []
    for agent_id in folder.subs():
        place = folder.sub(agent_id)
        if (kept := place.load()) is not None:
            found.append((*kept, place))
    for record, messages, place in sorted(found, key=lambda each: (each[0].depth, each[0].created_at)):
        assert record.parent_id is not None  # noqa: S101 - only the root has none
        above = context_of(record.parent_id)
        yield record, _with(above.child(spec_of(record)), messages, spec_of(record)), place


def spec_of(record: StrandRecord) -> AgentSpec:
    """Return what makes a recorded agent what it is."""
    return AgentSpec(
        record.agent_name,
        record.role_description,
        record.system_instruction,
        record.task_goal,
        record.max_turns,
        record.timeout,
        record.budget,
    )


def report_of(record: StrandRecord) -> Report | None:
    """Read the report that a record has."""
    return _REPORT.validate_python(record.report) if record.report is not None else None


def state_of(report: Report) -> dict[str, object]:
    """Describe a report as plain JSON."""
    state: dict[str, object] = _REPORT.dump_python(report, mode="json")
    return state


def _with(context: SessionContext, messages: list[Message], spec: AgentSpec) -> SessionContext:
    manager = MessageManager(messages)
    memory = SessionMemoryManager(manager)
    return replace(context, message_manager=manager, session_memory_manager=memory, agent_config=spec)
