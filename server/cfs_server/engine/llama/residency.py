"""Whose state is on the device, whose in memory, whose nowhere: the prefix tree over llama.cpp's pool.

State is kept in runs of tokens, each once for all sessions that share it. At the end of a turn it is copied to memory
("write-behind"), so that leaving the device is only a removal. What is on the device hangs together from the first
token on, and so does what is kept at all; so only leaves are evicted. For models whose state has no parts there is
`snapshots.Snapshots`.
"""

import time
from array import array
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.keeping import Keeping
from cfs_server.engine.llama.pool import Slot
from cfs_server.engine.llama.seat import Seat
from cfs_server.engine.prefixes.policy import dispensable
from cfs_server.engine.prefixes.tree import Node


class Residency(Keeping):
    """Gives turns their seats, and decides what leaves when room is short."""

    def known(self, owner: str, log: "array[int]") -> int:
        """Leading tokens of a prompt that need no evaluation, all but the last at most."""
        return self.tree.match(owner, tokens_of(log, len(log) - 1)).length

    def enter(self, owner: str, log: "array[int]", spare: int, *, alone: bool) -> Seat | None:
        """Seat a turn behind the longest known prefix of its log, if the log and `spare` cells fit.

        `None` when there is no room or no id. A turn that is alone gets what there is; what cannot be restored is lost.
        """
        node = self._near(self._beginning(owner, log))
        if node is not None:
            node.pin()
        seat = self._sit(Seat(owner, Slot(-1), node), len(log), spare, alone=alone)
        if seat is None and node is not None:
            node.pin(-1)
            if alone:
                # What was saved as one needs room for all of it, also for the part that is on the device already.
                if not self._evict_all():
                    self._lose(node)
                return self.enter(owner, log, spare, alone=True)
        return seat

    def grow(self, seat: Seat, count: int) -> None:
        """Count what a step computed for a turn."""
        self.pool.grow(seat.slot, count)

    def undo(self, seats: Sequence[Seat]) -> None:
        """Take back what an aborted step may have written."""
        for seat in seats:
            self.pool.forget_rest(seat.slot, seat.length)

    def commit(self, seat: Seat, log: "array[int]") -> None:
        """Put everything that a turn has computed into the tree, for others to share."""
        before, start = seat.node, seat.shared
        if start == seat.length:
            return
        node = self.tree.insert(seat.owner, tokens_of(log, seat.length))
        if node is None:
            return
        node.pin()
        for part in node.path():
            if part.end <= start:
                continue
            if part.device is None:
                self.pool.hold(part, seat.slot)
            else:
                self.pool.replace(part, seat.slot)
        self.pool.adopt(seat.slot)
        seat.node = node
        if before is not None:
            before.pin(-1)

    def leave(self, seat: Seat, log: "array[int] | None", key: str | None, pause: float = 0.0) -> None:
        """Free a turn's seat. What it computed, if it is given, stays for the session `key`.

        Without a log nothing more is committed, and without a key only what others need stays.
        """
        if log is not None:
            self.commit(seat, log)
        node = seat.node
        self.pool.forget_rest(seat.slot, seat.shared)
        seat.slot.running = False
        path = node.path() if node else []
        if seat.slot.nodes:
            for part in path:
                self.pool.move(part, seat.slot)
        else:
            self.pool.release(seat.slot)
        if node is None:
            return
        node.pin(-1)
        self._touch(path, pause)
        if key is None:
            self._prune(node)
            return
        before = self.tree.attach(key, node)
        if before is not node:
            self._prune(before)
        self._join(node)
        for part in node.path():
            self._store_in_time(part)
        for part in node.path():
            self._write(part)

    def fetch(self, owner: str, log: "array[int]") -> bool:
        """Have read what of a prompt is on disk only; whether a turn has to wait for that."""
        return self.disk.on and self.disk.fetch(self._known_nodes(owner, log))

    def forget(self, key: str) -> None:
        """Free what is kept for a session and no other."""
        self._prune(self.tree.detach(key))

    def expect(self, key: str, pause: float) -> None:
        """Note the pause before a session's next turn."""
        node = self.tree.end_of(key)
        self._touch(node.path() if node else [], pause)

    def make_room(self, cells: int) -> bool:
        """Evict until this many cells are free; false when nothing more can go."""
        while self.pool.cells_free < cells:
            if not self.evict_one():
                return False
        return True

    def evict_one(self) -> bool:
        """Take off the device what is most dispensable; false when everything there is in use."""
        victim = max(filter(self._evictable, self.pool.nodes), key=dispensable(time.monotonic()), default=None)
        if victim is not None:
            self._evict(victim)
        return victim is not None

    def _evict_all(self) -> bool:
        """Take off the device whatever is not in use; false when that is nothing."""
        found = False
        while self.evict_one():
            found = True
        return found

    def evict_rested(self) -> None:
        """Take off the device what rested for a while: idle cells make every step slower."""
        limit = time.monotonic() - self._idle_seconds
        rested = [node for node in self.pool.nodes if not node.pins and node.used < limit]
        for node in sorted(rested, key=lambda node: node.end, reverse=True):
            if node.device is not None and self._evictable(node):
                self._evict(node)

    def check_integrity(self) -> list[str]:
        """Compare the books with each other and with the device; every line is a violation."""
        nodes = list(self.tree)
        problems = self.tree.check_integrity() + self.pool.check_integrity()
        problems += self.memory.check_integrity([node.memory for node in nodes if node.memory])
        problems += self._stored.check_integrity() + self.disk.check_integrity(nodes)
        problems += self.copying.check_integrity()
        if self.pool.nodes - set(nodes) or set(self._stored) != {node for node in nodes if node.memory}:
            problems.append("state is kept for nodes that are not in the tree, or nodes in memory are not listed")
        return problems + [problem for node in nodes for problem in self._misplaced(node)]

    def _misplaced(self, node: Node) -> list[str]:
        above = node.parent
        problems = [] if node.kept else [f"the node at {node.start} has no state"]
        if above is not None and above.parent is not None and node.device is not None and above.device is None:
            problems.append(f"the node at {node.start} is on the device, what comes before is not")
        if node.pins and node.device is None:
            problems.append(f"the node at {node.start} is pinned but not on the device")
        return problems

    def _beginning(self, owner: str, log: "array[int]") -> Node | None:
        """Find the node behind which a log goes on, cutting one if it must."""
        return self.tree.insert(owner, tokens_of(log, self.known(owner, log)))

    def _known_nodes(self, owner: str, log: "array[int]") -> Sequence[Node]:
        """List the nodes that a prompt goes through."""
        return self.tree.match(owner, tokens_of(log, len(log) - 1)).nodes

    def _sit(self, seat: Seat, length: int, spare: int, *, alone: bool) -> Seat | None:
        path = seat.node.path() if seat.node else []
        missing = [node for node in path if node.device is None]
        saved = [(blob, list(nodes)) for blob, nodes in groupby(missing, key=lambda node: node.memory)]
        needed = sum(blob.end - blob.start for blob, _ in saved if blob)
        if not self.make_room(needed + length - seat.shared + spare) and not alone:
            return None
        slot = self._take_slot()
        if slot is None:
            return None
        self.pool.share(path, slot)
        if not all(self.pool.restore(nodes, slot) for _, nodes in saved):
            slot.running = False
            for node in list(slot.nodes):
                self.pool.drop(node)
            if slot.id in self.pool.slots:
                self.pool.release(slot)
            return None
        seat.slot = slot
        slot.length = seat.shared
        self._touch(path)
        return seat

    def _take_slot(self) -> Slot | None:
        while (slot := self.pool.take()) is None:
            if not self.evict_one():
                return None
        return slot

    def _evictable(self, node: Node) -> bool:
        return not node.pins and all(child.device is None for child in node.children.values())

    def _evict(self, node: Node) -> None:
        self._store(node)
        self.pool.drop(node)
        if not node.kept:
            self._lose(node)


def tokens_of(log: "array[int]", length: int) -> Tokens:
    """Copy the beginning of a log (a view would keep the log from growing)."""
    return np.array(log[:length], dtype=np.int32)
