"""What goes first when there is no room for all."""

from collections.abc import Callable

from cfs_server.engine.prefixes.tree import Node


def dispensable(now: float) -> Callable[[Node], tuple[bool, float]]:
    """Rank nodes: those kept twice first, then by how far off their next use seems.

    Whoever is overdue, or was never announced, is thought to stay away for as long again as he did already.
    """
    return lambda node: (node.device is not None and node.memory is not None, max(node.expected - now, now - node.used))
