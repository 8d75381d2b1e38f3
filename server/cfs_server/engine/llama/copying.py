"""Large state that is copied to memory in pieces, one between two steps, so that no stream waits for all of it."""

from collections import deque

from cfs_server.engine.disk.form import Piece
from cfs_server.engine.llama.pool import Pool
from cfs_server.engine.prefixes.memory import Blob
from cfs_server.engine.prefixes.tree import Node

PIECE_BYTES = 16 << 20
"""State that is copied at once, a few milliseconds' worth."""


class Copying:
    """Nodes that rest on the device and are still to be copied; what happens to them meanwhile is seen at their turn.

    One that is cut begins anew, one that has left needs no copy: whoever takes a node off the device copies it first.
    """

    def __init__(self, pool: Pool, piece_bytes: int = PIECE_BYTES) -> None:
        self.piece_bytes = piece_bytes
        self._pool = pool
        self._due: deque[Node] = deque()
        self._copied: _Copied | None = None

    def __len__(self) -> int:
        return len(self._due)

    def takes(self, node: Node) -> bool:
        """Take in a node whose state is large; false when it had better be copied at once."""
        if not self._pool.has_parts or self._pool.state_bytes(len(node.tokens)) <= self.piece_bytes:
            return False
        if node not in self._due:
            self._due.append(node)
        return True

    def go_on(self) -> tuple[Node, Blob] | None:
        """Copy one piece; returns a node with its state when that is complete."""
        while self._due and not _is_due(self._due[0]):
            self._due.popleft()
        if not self._due:
            self._copied = None
            return None
        node, copied = self._due[0], self._copied
        if copied is None or (copied.node, copied.start, copied.end) != (node, node.start, node.end):
            copied = self._copied = _Copied(node)
        tokens = max(1, len(node.tokens) * self.piece_bytes // self._pool.state_bytes(len(node.tokens)))
        copied.pieces += self._pool.save_part(node, copied.place, min(node.end, copied.place + tokens))
        if copied.place < node.end:
            return None
        self._due.popleft()
        self._copied = None
        size = sum(piece.state.nbytes for piece in copied.pieces)
        return node, Blob(node.start, node.end, size, tuple(copied.pieces))

    def check_integrity(self) -> list[str]:
        """Compare what is due with what is copied; every line is a violation."""
        copied, problems = self._copied, []
        if len(set(self._due)) != len(self._due):
            problems.append("a node is to be copied twice")
        if copied is not None and (copied.node not in self._due or not copied.start <= copied.place <= copied.end):
            problems.append("pieces are kept of a node that is not to be copied")
        return problems


class _Copied:
    """What there is of a copy."""

    def __init__(self, node: Node) -> None:
        self.node, self.start, self.end = node, node.start, node.end
        self.pieces: list[Piece] = []

    @property
    def place(self) -> int:
        """The first position that is not copied."""
        return self.pieces[-1].end if self.pieces else self.start


def _is_due(node: Node) -> bool:
    return node.parent is not None and node.device is not None and node.memory is None
