"""The end of a sub-agent's task: its report is checked and stored, and its turn ends with it (B2, B7)."""

from contextlib import suppress
from dataclasses import replace

from cfs.errors import CfsError
from cfs_agents.base.usage import since
from cfs_agents.guards.report import Report
from cfs_agents.tree.node import TreeNode
from cfs_agents.tree.record import state_of
from cfs_agents.tree.session_backend import ClaimedTurn


async def checked(node: TreeNode, report: Report, *, finish_calls: int) -> Report:
    """Add the facts to a report: changes by the agent, by agents below it, and those that no agent made.

    Changes by siblings are in their own reports. `finish_calls` is how often the agent has reported.
    """
    guards = node.tree.guards
    report = replace(report, usage=since(node.record.usage, node.record.usage_before))
    report = await guards.judge(report, reports=max(1, finish_calls))
    own = {None, *node.family()}
    guards.ended(node.agent_id)
    return replace(report, facts=tuple(change for change in report.facts if change.by in own))


async def conclude(node: TreeNode, report: Report) -> None:
    """Store a checked report, and end the turn with it."""
    record, language = node.record, node.tree.config.language
    _set_report(node, report)
    record.begun, record.asking, record.finish = [], "", None
    record.seconds_used = node.clock.stop()
    await node.journal.save()
    if node.output.lease is None and not report.ok:
        # Its turn was never claimed: the message must not wait for ever.
        with suppress(CfsError):
            await node.tree.backend.cancel(node.session_id)
    await node.output.finish(report, language)
    record.lease = None
    await node.journal.save()
    node.output.chunk("ended", content=report.summary if node.is_root and report.ok else report.text(language))


async def conclude_unstored(node: TreeNode, report: Report) -> None:
    """End the turn of a task whose state cannot be stored."""
    _set_report(node, report)
    node.record.lease = None
    node.tree.guards.ended(node.agent_id)
    with suppress(CfsError):
        await node.tree.backend.cancel(node.session_id)
    node.output.chunk("ended", content=report.text(node.tree.config.language))


async def end_turn(node: TreeNode, turn: ClaimedTurn | None) -> None:
    """End a turn whose report was stored by a process that was killed then."""
    if turn is not None and node.report is not None:
        node.output.begin(turn)
        await node.output.finish(node.report, node.tree.config.language)
    node.record.lease = None
    await node.journal.save()


def _set_report(node: TreeNode, report: Report) -> None:
    node.record.state, node.record.report = "done", state_of(report)
    node.record.report_delivered = node.is_root
