"""Nodes whose state is in memory, sorted so that the most dispensable is found without looking at all of them.

Among nodes with the same expected pause the one that was used longest ago is the most dispensable, now and later; so
one list for each pause, oldest first, is enough, and there are but a few different pauses.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import count

from cfs_server.engine.prefixes.tree import Node

_Entry = tuple[float, int, Node]
"""When it was used, a number that makes entries different, the node."""


class Shelf:
    """A set of nodes; whoever changes `used` or `pause` of one says so by `touch`."""

    def __init__(self) -> None:
        self._by_pause: dict[float, list[_Entry]] = {}
        self._places: dict[Node, tuple[float, _Entry]] = {}
        self._numbers = count()

    def add(self, node: Node) -> None:
        """Take in a node, or put it where its pause and its use belong."""
        self.discard(node)
        entry = (node.used, next(self._numbers), node)
        self._places[node] = node.pause, entry
        insort(self._by_pause.setdefault(node.pause, []), entry)

    def touch(self, node: Node) -> None:
        """Note that a node was used, if it is here."""
        if node in self._places:
            self.add(node)

    def discard(self, node: Node) -> None:
        """Take a node out, if it is here."""
        place = self._places.pop(node, None)
        if place is not None:
            pause, entry = place
            entries = self._by_pause[pause]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._by_pause[pause]

    def oldest(self, allowed: Callable[[Node], bool]) -> Iterator[Node]:
        """Yield, for each pause, the allowed node that was used longest ago."""
        for entries in self._by_pause.values():
            found = next((node for _, _, node in entries if allowed(node)), None)
            if found is not None:
                yield found

    def __contains__(self, node: Node) -> bool:
        """Whether a node is here."""
        return node in self._places

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self._places)

    def __iter__(self) -> Iterator[Node]:
        """Go through all nodes."""
        return iter(self._places)

    def check_integrity(self) -> list[str]:
        """Compare the places with the nodes; every line is a violation."""
        problems = [
            f"the node at {node.start} was used, and the shelf does not know"
            for node, (pause, (used, _, _)) in self._places.items()
            if (pause, used) != (node.pause, node.used)
        ]
        entries = [entry for pause in self._by_pause.values() for entry in pause]
        if {entry[2] for entry in entries} != self._places.keys() or len(entries) != len(self._places):
            problems.append("the lists of the shelf and its places do not agree")
        return problems
