"""What goes first when there is no room for all."""

from collections.abc import Callable

from cfs_server.engine.prefixes.tree import Node

SECONDS_UNTIL = {
    "children_done": 2.0,
    "tool_call": 5.0,
    "waiting_for_children": 30.0,
    "user_turn": 60.0,
    "interactive": 60.0,
    "agent": 5.0,
    "background": 60.0,
}
"""The pause before a session's next turn: by what it was said to do, or by the kind of the turn that it had."""


def dispensable(now: float) -> Callable[[Node], tuple[bool, float, float]]:
    """Rank nodes: those kept twice first, then by how far off their next use seems, then by how long ago the last was.

    A pause says nothing of its end: who thinks is as far from his next word after ten seconds as after one. But whoever
    is overdue, or was never announced, is thought to stay away for as long again as he did already.
    """
    return lambda node: (
        node.device is not None and node.memory is not None,
        max(node.pause, now - node.used),
        now - node.used,
    )
