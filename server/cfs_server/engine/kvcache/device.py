"""The device: the cells of the pool, the sequences that use them, and the allocation of each running turn.

A cell may belong to several sequences. Each node of the prefix tree on the device has one sequence. A running turn has
its own sequence. It shares the cells of all nodes on its path and adds cells after them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cfs_server.engine.kvcache.radix_tree import Blob, Node
from cfs_server.engine.kvcache.state_file import StatePiece
from cfs_server.engine.llama.ffi import LlamaContext


@dataclass(eq=False, slots=True)
class SequenceHandle:
    """A sequence id in use. `length` positions are computed while a turn runs on it, `own` of them by that turn."""

    id: int
    nodes: set[Node] = field(default_factory=set)
    running: bool = True
    length: int = 0
    own: int = 0


class Pool:
    """Owns all cells and sequence ids."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._free = list(range(context.sequences - 1, -1, -1))
        self._scratch = self._free.pop() if context.partial else -1
        self.handles: dict[int, SequenceHandle] = {}
        self.nodes: set[Node] = set()
        self._held = 0

    @property
    def cells_used(self) -> int:
        """Cells that hold something."""
        return self._held + sum(handle.own for handle in self.handles.values())

    @property
    def cells(self) -> int:
        """All cells that there are."""
        return self._context.cells

    def state_bytes(self, tokens: int) -> int:
        """Bytes of the saved state of so many tokens, about."""
        return tokens * self._context.cell_bytes + self._context.state_bytes

    @property
    def cells_free(self) -> int:
        """Cells that hold nothing."""
        return self._context.cells - self.cells_used

    def take(self) -> SequenceHandle | None:
        """Take a sequence id for a turn."""
        if not self._free:
            return None
        handle = SequenceHandle(self._free.pop())
        self.handles[handle.id] = handle
        return handle

    def release(self, handle: SequenceHandle) -> None:
        """Give back a sequence id that holds no node."""
        self._context.clear(handle.id)
        del self.handles[handle.id]
        self._free.append(handle.id)

    def hold(self, node: Node, handle: SequenceHandle) -> None:
        """Record that a handle has a node's cells."""
        node.device = handle.id
        handle.nodes.add(node)
        self.nodes.add(node)
        self._held += self._size(node)

    def drop(self, node: Node) -> None:
        """Release a node; its cells are free when no running turn shares them."""
        handle = self._let_go(node)
        if handle.running:
            handle.own += self._size(node)
        elif handle.nodes:
            self._context.drop(handle.id, node.start, node.end)
        else:
            self.release(handle)

    def move(self, node: Node, handle: SequenceHandle) -> None:
        """Move a node to a handle that shares its cells, if no turn runs on its present handle."""
        if node.device is None or node.device == handle.id:
            return
        if self.handles[node.device].running:
            self._context.drop(handle.id, node.start, node.end)
        else:
            self.drop(node)
            self.hold(node, handle)

    def padding(self, count: int) -> int | None:
        """Return a sequence for padding tokens, until `clear_padding`; `None` without room for the step."""
        return self._scratch if self._scratch >= 0 and count <= self.cells_free else None

    def clear_padding(self) -> None:
        """Free the cells of padding tokens."""
        self._context.clear(self._scratch)

    def share(self, nodes: Iterable[Node], handle: SequenceHandle) -> None:
        """Share the cells of nodes with a handle."""
        for node in nodes:
            if node.device is not None and node.device != handle.id:
                self._context.share(node.device, handle.id, node.start, node.end)

    def replace(self, node: Node, handle: SequenceHandle) -> None:
        """Swap cells of a handle for those of a node that has the same tokens."""
        if node.device is not None:
            self._context.drop(handle.id, node.start, node.end)
            self._context.share(node.device, handle.id, node.start, node.end)

    def grow(self, handle: SequenceHandle, count: int) -> None:
        """Count cells that a turn has just filled."""
        self._context.guard(handle.id, handle.length, handle.length + count)
        handle.length += count
        handle.own += count

    def adopt(self, handle: SequenceHandle) -> None:
        """Count no cells of a turn as its own: nodes have them now."""
        handle.own = 0

    def take_over(self, node: Node) -> SequenceHandle:
        """Give the sequence of a node to a turn; the node loses it."""
        handle = self._let_go(node)
        handle.running, handle.length, handle.own = True, node.end, node.end
        return handle

    def forget_rest(self, handle: SequenceHandle, length: int) -> None:
        """Truncate a turn's sequence to a length; the removed cells must be its own."""
        self._context.drop(handle.id, length, -1)
        handle.own -= handle.length - length
        handle.length = length

    def empty(self, handle: SequenceHandle) -> None:
        """Forget everything that a turn has computed."""
        self._context.clear(handle.id)
        handle.length = handle.own = 0

    def save(self, node: Node) -> Blob:
        """Copy the state of a node out of the pool."""
        if node.device is None:
            raise ValueError("only what is on the device can be saved")
        if not self._context.partial:
            state = self._context.save(node.device)
            return Blob(0, node.end, state.nbytes, (StatePiece(0, node.end, state),))
        pieces = tuple(self._save_pieces(node.device, node.start, node.end))
        return Blob(node.start, node.end, sum(piece.state.nbytes for piece in pieces), pieces)

    @property
    def has_parts(self) -> bool:
        """Whether a part of a sequence can be saved separately."""
        return self._context.partial

    def save_part(self, node: Node, start: int, end: int) -> tuple[StatePiece, ...]:
        """Copy the state of some of a node's positions out of the pool; only where there are parts."""
        if node.device is None:
            raise ValueError("only what is on the device can be saved")
        return tuple(self._save_pieces(node.device, start, end))

    def _save_pieces(self, sequence: int, start: int, end: int) -> "Iterator[StatePiece]":
        """Save a run in pieces no longer than a window: the library saves nothing that lies before the window."""
        step = self._context.window or end
        edges = [start, *range((start // step + 1) * step, end, step), end]
        for left, right in pairwise(edges):
            self._context.share(sequence, self._scratch, left, right)
            state = self._context.save(self._scratch)
            self._context.clear(self._scratch)
            yield StatePiece(left, right, state)

    def restore(self, nodes: Sequence[Node], handle: SequenceHandle) -> bool:
        """Copy the state of nodes that were saved as one back, for a handle to hold; false when there is no room."""
        blob = nodes[0].memory
        if blob is None:
            return False
        for piece in blob.data:
            start, end = max(piece.start, nodes[0].start), min(piece.end, nodes[-1].end)
            if start >= end:
                continue
            restored = self._context.restore(self._scratch, piece.state)
            if restored:
                self._context.share(self._scratch, handle.id, start, end)
            self._context.clear(self._scratch)
            if not restored:
                return False
        for node in nodes:
            self.hold(node, handle)
        return True

    def restore_whole(self, blob: Blob, handle: SequenceHandle) -> bool:
        """Copy a whole sequence's state back, for a turn to continue from; false when there is no room for it."""
        if not self._context.restore(handle.id, blob.data[0].state):
            self._context.clear(handle.id)
            return False
        handle.length = handle.own = blob.end
        return True

    def split(self, upper: Node, lower: Node) -> None:
        """Note that a node became two."""
        if lower.device is not None:
            self.handles[lower.device].nodes.add(upper)
            self.nodes.add(upper)

    def joined(self, upper: Node) -> None:
        """Note that a node was taken in by the one below it, which the same handle holds."""
        if upper.device is not None:
            self.handles[upper.device].nodes.discard(upper)
            self.nodes.discard(upper)

    def check_integrity(self) -> list[str]:
        """Compare the records with the device; every line is a violation."""
        problems = []
        ids = sorted([*self.handles, *self._free, *([self._scratch] if self._scratch >= 0 else [])])
        if ids != list(range(self._context.sequences)):
            problems.append(f"sequence ids are lost: held {sorted(self.handles)}, free {sorted(self._free)}")
        held = {node: handle.id for handle in self.handles.values() for node in handle.nodes}
        if held.keys() != self.nodes or any(node.device != device for node, device in held.items()):
            problems.append("nodes and the sequences that hold them do not agree")
        if sum(map(self._size, self.nodes)) != self._held:
            problems.append(f"{self._held} cells are booked for nodes")
        for number in range(self._context.sequences):
            expected, span = self._expected(number), self._context.span(number)
            if span != expected and (self._context.partial or span[1] != expected[1]):
                problems.append(f"sequence {number} holds positions {span} in place of {expected}")
        return problems

    def _expected(self, number: int) -> tuple[int, int]:
        handle = self.handles.get(number)
        if handle is not None and handle.running:
            return (0, handle.length - 1) if handle.length else (-1, -1)
        if handle is not None and handle.nodes:
            return min(node.start for node in handle.nodes), max(node.end for node in handle.nodes) - 1
        return -1, -1

    def _size(self, node: Node) -> int:
        """Cells of a node; state that has no parts is that of all tokens up to its end."""
        return len(node.tokens) if self._context.partial else node.end

    def _let_go(self, node: Node) -> SequenceHandle:
        if node.device is None:
            raise ValueError("the node is not on the device")
        handle = self.handles[node.device]
        handle.nodes.remove(node)
        self.nodes.remove(node)
        self._held -= self._size(node)
        node.device = None
        return handle


@dataclass(eq=False, slots=True)
class Allocation:
    """A turn's allocation: its sequence, and the (pinned) node of the tree up to which others may share."""

    owner: str
    handle: SequenceHandle
    node: Node | None

    @property
    def shared(self) -> int:
        """Leading positions that are in the tree."""
        return self.node.end if self.node else 0

    @property
    def length(self) -> int:
        """Positions that are computed."""
        return self.handle.length
