"""The prefix cache for models with indivisible state: recurrent and hybrid models.

A node's state covers all tokens up to its end and is saved when a turn ends. Other turns can continue only from such an
end. The turn that continues takes over the sequence. The copy in memory remains for later turns.
"""

from array import array
from collections.abc import Sequence

from cfs_server.engine.kvcache.cache import PrefixCache, tokens_of
from cfs_server.engine.kvcache.device import Allocation, SequenceHandle
from cfs_server.engine.kvcache.radix_tree import Node, StateFile


class SnapshotCache(PrefixCache):
    """Keeps whole states, each in one node."""

    @property
    def partial(self) -> bool:
        """Whether a turn can continue from the middle of another's state."""
        return False

    def known(self, owner: str, log: "array[int]") -> int:
        """Leading tokens of a prompt that need no evaluation, all but the last at most."""
        node = self._beginning(owner, log)
        return node.end if node else 0

    def allocate(self, owner: str, log: "array[int]", spare: int, *, alone: bool) -> Allocation | None:
        """Allocate a sequence behind the longest prefix of a log that has a state, if the log and `spare` cells fit."""
        node = self._beginning(owner, log, near=True)
        position = node.end if node is not None and node.device is not None else 0
        if node is not None:
            self._touch([node])
            node.pin()
        fits = self.make_room(len(log) - position + spare) or alone
        if node is not None:
            node.pin(-1)
        handle = self._continue(node) if fits else None
        return Allocation(owner, handle, None) if handle else None

    def undo(self, allocations: Sequence[Allocation]) -> None:
        """Reset to empty: changed state cannot be divided."""
        for allocation in allocations:
            self.pool.empty(allocation.handle)

    def commit(self, allocation: Allocation, log: "array[int]") -> None:
        """Do nothing: the state of a running turn cannot be shared."""

    def release(self, allocation: Allocation, log: "array[int] | None", key: str | None, pause: float = 0.0) -> None:
        """Free a turn's allocation. Its state stays for the session `key`."""
        handle = allocation.handle
        handle.running = False
        if (
            log is None
            or key is None
            or (node := self.tree.insert(allocation.owner, tokens_of(log, handle.length))) is None
        ):
            self.pool.release(handle)
            return
        if node.device is None:
            handle.own = 0
            self.pool.hold(node, handle)
        else:
            self.pool.release(handle)
        self._touch([node], pause)
        before = self.tree.attach(key, node)
        if before is not node:
            self._prune(before)
        self._store(node)
        self._write(node)

    def _beginning(self, owner: str, log: "array[int]", *, near: bool = False) -> Node | None:
        match = self.tree.match(owner, tokens_of(log, len(log) - 1))
        nodes = (node for node in reversed(match.nodes) if node.end <= match.length)
        return next((node for node in nodes if (node.near if near else node.kept)), None)

    def _known_nodes(self, owner: str, log: "array[int]") -> Sequence[Node]:
        node = self._beginning(owner, log)
        return [node] if node is not None else []

    def _removable(self, entry: StateFile) -> bool:  # noqa: ARG002 - states do not depend on each other
        return True

    def _continue(self, node: Node | None) -> SequenceHandle | None:
        """Take a sequence that has the state of a node, or an empty one."""
        if node is not None and node.device is not None:
            self._store(node)
        if node is not None and node.device is not None:
            handle = self.pool.take_over(node)
            if node.memory is None:
                self._lose(node)
            return handle
        taken = self._take_handle()
        if taken is not None and node is not None and node.memory is not None:
            self.pool.restore_whole(node.memory, taken)
        return taken

    def _evictable(self, node: Node) -> bool:
        return not node.pins

    def _discardable(self, node: Node) -> bool:
        return node.device is not None or not node.pins

    def _lose(self, node: Node) -> None:
        """Take out a node without state, and those above it that only led to it."""
        above: Node | None = node
        while above is not None and above.parent is not None and not (above.kept or above.children or above.pins):
            node, above = above, above.parent
            self._take_out(node)

    def _prune(self, node: Node | None) -> None:
        for part in self.tree.unwanted(node):
            node = part.parent
            self._take_out(part)
        if node is not None:
            self._lose(node)

    def _on_split(self, upper: Node, _lower: Node) -> None:
        upper.device = upper.memory = upper.disk = None

    def _misplaced(self, node: Node) -> list[str]:
        return [] if node.kept or node.children else [f"the node at {node.start} has no state and leads nowhere"]
