"""State in files: bytes under a limit, each file gone with the last node that refers to it. The books only, no I/O."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfs_server.engine.prefixes.tree import Node


@dataclass(eq=False, slots=True)
class Entry:
    """A file with the state of the positions from `start` to `end`; nodes that were one when it was written share it.

    While it is `reading` somebody waits for it.
    """

    start: int
    end: int
    size: int
    name: str
    nodes: "set[Node]" = field(default_factory=set)
    reading: bool = False


class Disk:
    """Counts the bytes of all files, and knows which was used longest ago."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._entries: OrderedDict[Entry, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether something has to go."""
        return self.used > self.limit

    @property
    def alone(self) -> int:
        """Nodes whose state is nowhere else."""
        return sum(node.device is None and node.memory is None for entry in self._entries for node in entry.nodes)

    def add(self, entry: Entry, node: "Node") -> None:
        """Count a new file and let a node refer to it."""
        self.used += entry.size
        self._entries[entry] = None
        self.share(entry, node)

    def share(self, entry: Entry, node: "Node") -> None:
        """Let one node more refer to a file."""
        node.disk = entry
        entry.nodes.add(node)

    def free(self, node: "Node") -> Entry | None:
        """Let a node refer to nothing; returns the file if it is to be removed."""
        entry, node.disk = node.disk, None
        if entry is None:
            return None
        entry.nodes.discard(node)
        if entry.nodes:
            return None
        self.used -= entry.size
        del self._entries[entry]
        return entry

    def touch(self, entry: Entry) -> None:
        """Note that a file was used."""
        if entry in self._entries:
            self._entries.move_to_end(entry)

    def oldest(self) -> Iterator[Entry]:
        """Go through the files, those used longest ago first."""
        return iter(list(self._entries))

    def check_integrity(self, nodes: "Iterable[Node]") -> list[str]:
        """Compare the books with the nodes that refer to files; every line is a violation."""
        held = {node: node.disk for node in nodes if node.disk is not None}
        booked = {node: entry for entry in self._entries for node in entry.nodes}
        problems = [] if held == booked else ["nodes and the files that they refer to do not agree"]
        if any(not entry.nodes for entry in self._entries):
            problems.append("a file is kept that no node refers to")
        if (there := sum(entry.size for entry in self._entries)) != self.used:
            problems.append(f"{self.used} bytes are booked on disk, {there} are there")
        if self.full:
            problems.append(f"{self.used} bytes are kept on disk where {self.limit} may be")
        return problems
