"""The merge of an isolated agent's copy of the files into those of its parent, at the end of its task (B2)."""

from dataclasses import replace
from functools import partial
from typing import Any

from cfs.api import acting_as
from cfs.errors import StorageFull
from cfs_agents.base.disk import DiskError
from cfs_agents.base.messages import catalogue
from cfs_agents.base.threads import to_the_end
from cfs_agents.guards.report import Report
from cfs_agents.tree.node import TreeNode
from cfs_agents.tree.record import InboxMessage

_SENDER = "files"
"""No agent: a report that the parent reads must not take this notification out of its inbox."""


async def merged(node: TreeNode, report: Report) -> Report:
    """Merge the changes that an agent has made in its copy of the files, if it ended its task itself.

    On the server these are changes by the parent, by the call that spawned the agent.
    The report names the conflicts, or where changes are that are not merged.
    """
    if report.status in ("failed", "cancelled"):
        return unmerged(node, report)
    assert node.parent is not None  # noqa: S101 - only a child has a copy
    try:
        await finish_merge(node)
        numbers = await to_the_end(partial(node.tree.branches.begin_merge, node.parent.branch_files, node.agent_id))
        await _note(node, merging=numbers)
        await finish_merge(node)
    except (DiskError, StorageFull) as error:
        reason = catalogue(node.tree.config.language).merge_failed.format(error.detail)
        return unmerged(node, replace(report, status="failed", reasons=(*report.reasons, reason)))
    if node.tree.published is not None:
        spawned_by = (node.record.spawned_by or "").partition(":")[2]
        with acting_as(node.parent.session_id, spawned_by):  # so that a rewind of the parent takes the merge back
            await node.tree.published.send()
    conflicts = node.record.branch.conflicts if node.record.branch is not None else ()
    return replace(report, reasons=(*report.reasons, *conflicts))


def unmerged(node: TreeNode, report: Report) -> Report:
    """Name in a report the copy of the files that an agent has had, and the conflicts of an earlier merge of it."""
    if node.record.branch is None:
        return report
    sentence = catalogue(node.tree.config.language).not_merged.format(node.context.agent_workspace)
    return replace(report, reasons=(*report.reasons, sentence, *node.record.branch.conflicts))


async def finish_merge(node: TreeNode) -> None:
    """Carry out the merge that is noted, or was interrupted. Raises `StorageFull` and `DiskError`.

    The parent of an agent that has reported already, that its files are not merged yet, gets another notification.
    """
    branch = node.record.branch
    if branch is None or branch.merging is None or node.parent is None:
        return
    merge = partial(node.tree.branches.merge, node.parent.branch_files, node.agent_id, branch.merging)
    say, record = catalogue(node.tree.config.language), node.record
    conflicts = [say.merge_conflict.format(path, ", ".join(files)) for path, files in await to_the_end(merge)]
    if record.state == "done":
        text = "\n".join([say.merged_late.format(node.agent_id), *conflicts])
        notification_id = f"{node.agent_id}:{record.tasks}:merged"
        await node.parent.inbox.deliver(
            InboxMessage(id=notification_id, sender=_SENDER, content=text, is_notification=True)
        )
        conflicts = []
    await _note(node, merging=None, conflicts=(*branch.conflicts, *conflicts))


async def _note(node: TreeNode, **changes: Any) -> None:
    """Store what has changed of the state of an agent's copy."""
    assert node.record.branch is not None  # noqa: S101 - for the type checker
    node.record.branch = node.record.branch.model_copy(update=changes)
    await node.journal.save()
