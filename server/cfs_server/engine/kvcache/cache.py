"""The prefix cache: the state of the prefix tree's nodes on the device, in memory and on disk.

Each run of tokens is stored once for all sessions that share it. At the end of a turn its state is copied to memory
(write-behind), so eviction from the device is only a removal. State on the device is contiguous from the first token,
and so is all state. Therefore only leaves are evicted. Models with indivisible state use `snapshots.SnapshotCache`.
"""

import time
from array import array
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, groupby, takewhile

import numpy as np

from cfs_server.engine.kvcache.device import Allocation, Pool, SequenceHandle
from cfs_server.engine.kvcache.disk import DiskTier
from cfs_server.engine.kvcache.radix_tree import (
    Blob,
    LRUIndex,
    Memory,
    Node,
    PrefixTree,
    StateFile,
    dispensable,
    owner_of,
    spelled,
)
from cfs_server.engine.kvcache.state_file import StatePiece
from cfs_server.engine.llama.ffi import LlamaContext, Tokens

PIECE_BYTES = 16 << 20
"""State that is copied at once, a few milliseconds' worth."""


class PrefixCache:
    """Allocates sequences to turns, and moves state between device, memory and disk within the limits of each.

    State that is in none of the three leaves the tree, with all nodes that need it.
    """

    def __init__(
        self, context: LlamaContext, memory_bytes: int, idle_seconds: float, disk: DiskTier | None = None
    ) -> None:
        self.pool = Pool(context)
        self.disk = disk or DiskTier()
        self.memory = Memory(memory_bytes)
        self.tree = PrefixTree(self._on_split)
        self.copying = Copying(self.pool)
        self._stored = LRUIndex()
        self._idle_seconds = idle_seconds
        self._recovered: set[str] = set()
        """Sessions of the previous worker, of which some may be deleted."""
        self._recover()

    @property
    def partial(self) -> bool:
        """Whether a turn can continue from the middle of another's state."""
        return True

    @property
    def nodes(self) -> int:
        """Nodes of the tree."""
        near = len(self._stored) + sum(node not in self._stored for node in self.pool.nodes)
        return near + self.disk.books.alone

    @property
    def parked(self) -> int:
        """Nodes whose state is in memory only."""
        return len(self._stored) - sum(node in self._stored for node in self.pool.nodes)

    def gauges(self) -> dict[str, float]:
        """Return sizes and numbers, for `/metrics`."""
        return {
            "cells_total": float(self.pool.cells),
            "parked_bytes": float(self.memory.used),
            "prefix_nodes": float(self.nodes),
        } | self.disk.gauges()

    def collect(self) -> None:
        """Process the disk's results since the last call; drop state that could not be read or written."""
        for entry, blob in self.disk.results():
            for node in sorted(entry.nodes, key=lambda each: each.end, reverse=True):
                if blob is None:
                    self._give_up(node)
                elif node.memory is None:
                    self._take_in(node, blob)
            if blob is not None and blob.users:
                self.trim_memory()
        for node in self.disk.take_due():
            self._write(node)

    def rest(self, seconds: float) -> None:
        """Free the copies in memory of state that is on disk and was not used for a while."""
        for node in self._stored.rested(time.monotonic() - seconds):
            if node.written and not node.pins:
                self._discard(node)

    def _near(self, node: Node | None) -> Node | None:
        """Go up from a node until nothing on the way is on disk only."""
        path = node.path() if node else []
        near = list(takewhile(lambda part: part.near, path))
        return near[-1] if near else None

    def _store(self, node: Node) -> None:
        """Copy a node's state to memory, if it is not there, and keep memory within its limit.

        State of a prompt that is larger than all of memory is not copied: it would evict everything and itself.
        """
        if self._wanted_in_memory(node):
            self._in_memory(node, self.pool.save(node))
        self.trim_memory()

    def _store_in_time(self, node: Node) -> None:
        """Copy a node's state to memory, at once or, when that takes long, in pieces between the next steps."""
        if not (self._wanted_in_memory(node) and self.copying.takes(node)):
            self._store(node)

    def copy_some(self) -> None:
        """Copy one piece of large state; complete state also goes to disk."""
        if (copied := self.copying.go_on()) is not None:
            node, blob = copied
            self._in_memory(node, blob)
            self.trim_memory()
            self._write(node)

    def _wanted_in_memory(self, node: Node) -> bool:
        return bool(node.memory is None and self.memory.limit) and self.pool.state_bytes(node.end) <= self.memory.limit

    def _in_memory(self, node: Node, blob: Blob) -> None:
        node.memory = self.memory.add(blob)
        self._stored.add(node)

    def trim_memory(self) -> None:
        """Enforce the memory limit."""
        while self.memory.full:
            twice = (node for node in self.pool.nodes if node.memory is not None)
            candidates = chain(twice, self._stored.oldest(self._discardable))
            self._discard(max(candidates, key=dispensable(time.monotonic())))

    def _discardable(self, node: Node) -> bool:
        return node.device is not None or not (node.pins or (node.children and node.disk is None))

    def _discard(self, node: Node) -> None:
        """Drop a copy in memory; the state is lost if it is neither on the device nor on disk."""
        if node.memory is not None:
            self.memory.free(node.memory)
            node.memory = None
            self._stored.discard(node)
        if not node.kept:
            self._lose(node)

    def _write(self, node: Node) -> None:
        """Write a node's state to disk in the background, and enforce the disk's limit.

        A node that was a part of another when it was saved gets a file of its own, if it is on the device: the file
        that it shared goes with the session that wrote it.
        """
        saved = node.disk or node.memory
        if self.disk.on and saved is not None and saved.end != node.end and node.device is not None:
            self.disk.free(node)
            self.disk.write(node, self.pool.save(node))
        else:
            self.disk.write(node, node.memory)
        self._trim_disk()

    def _trim_disk(self) -> None:
        while self.disk.books.full:
            files = self.disk.books.oldest()
            oldest = next(filter(self._removable, files), next(self.disk.books.oldest()))
            for node in sorted(oldest.nodes, key=lambda node: node.end, reverse=True):
                self._give_up(node)

    def _removable(self, entry: StateFile) -> bool:
        return all(node.near or not set(node.children.values()) - entry.nodes for node in entry.nodes)

    def _give_up(self, node: Node) -> None:
        """Remove a node's state on disk; the state is lost if it is nowhere else."""
        self.disk.free(node)
        if not node.kept:
            self._lose(node)

    def _take_in(self, node: Node, blob: Blob) -> None:
        """Attach a copy that was read from disk to a node."""
        if blob.users:
            self.memory.share(blob)
        else:
            blob.users = 1
            self.memory.add(blob)
        node.memory = blob
        node.used = time.monotonic()
        self._stored.add(node)

    def _recover(self) -> None:
        """Take over the files of the previous worker; remove those that are unreachable or redundant."""
        for file in self.disk.found():
            head = file.head
            cached = self.tree.match(head.owner, head.tokens).length
            if (self.partial and cached < head.start) or cached == head.end:
                self.disk.refuse(file)
                continue
            node = self.tree.insert(head.owner, head.tokens)
            if node is not None:
                self.disk.recover(file, node)
                for key in head.sessions:
                    self.tree.attach(key, node)
                    self._recovered.add(key)
        for node in list(self.tree):  # no later delete could remove a node without a session at it or below it
            self._prune(node)
        self.disk.put_in_order()
        self._trim_disk()

    def _lose(self, node: Node) -> None:
        """Take a node and everything behind it out of the tree."""
        for part in [*node.below(), node]:
            self._take_out(part)

    def _prune(self, node: Node | None) -> None:
        for part in self.tree.unwanted(node):
            self._take_out(part)

    def _take_out(self, node: Node) -> None:
        if node.device is not None:
            self.pool.drop(node)
        if node.memory is not None:
            self.memory.free(node.memory)
            node.memory = None
            self._stored.discard(node)
        self.disk.free(node)
        self.tree.remove(node)

    def _on_split(self, upper: Node, lower: Node) -> None:
        self.pool.split(upper, lower)
        self.memory.share(upper.memory)
        if upper.memory is not None:
            self._stored.add(upper)
        if upper.disk is not None:
            self.disk.books.share(upper.disk, upper)

    def _join(self, node: Node) -> None:
        """Make the prompt and the reply of a turn one node, as long as that copies nothing."""
        above = node.parent
        if above is None or above.device != node.device or above.pins or node.pins:
            return
        if above.memory or node.memory or above.disk or node.disk:
            return
        if (gone := self.tree.join(node)) is not None:
            self.pool.joined(gone)

    def _touch(self, path: Sequence[Node], pause: float = 0.0) -> None:
        """Note that nodes were used, and the pause until their next use; for shared nodes the shortest counts."""
        now = time.monotonic()
        for node in path:
            node.used = now
            node.pause = pause if len(node.children) < 2 else min(node.pause, pause)
            self._stored.touch(node)
            if node.disk is not None:
                self.disk.books.touch(node.disk)

    def known(self, owner: str, log: "array[int]") -> int:
        """Leading tokens of a prompt that need no evaluation, all but the last at most."""
        return self.tree.match(owner, tokens_of(log, len(log) - 1)).length

    def allocate(self, owner: str, log: "array[int]", spare: int, *, alone: bool) -> Allocation | None:
        """Allocate a sequence to a turn behind the longest known prefix of its log, if the log and `spare` cells fit.

        `None` when there is no room or no sequence. With `alone` all idle state may be evicted, and state that
        cannot be restored is lost.
        """
        node = self._near(self._beginning(owner, log))
        if node is not None:
            node.pin()
        allocation = self._place(Allocation(owner, SequenceHandle(-1), node), len(log), spare, alone=alone)
        if allocation is None and node is not None:
            node.pin(-1)
            if alone:
                # State that was saved as a whole needs room for all of it, including the part on the device.
                if not self._evict_all():
                    self._lose(node)
                return self.allocate(owner, log, spare, alone=True)
        return allocation

    def grow(self, allocation: Allocation, count: int) -> None:
        """Count the tokens that a step computed for a turn."""
        self.pool.grow(allocation.handle, count)

    def truncate(self, allocation: Allocation, length: int) -> None:
        """Remove the cells of refused draft tokens from the end of a turn's sequence."""
        if allocation.length > length:
            self.pool.forget_rest(allocation.handle, length)

    def undo(self, allocations: Sequence[Allocation]) -> None:
        """Remove the cells that an aborted step may have written."""
        for allocation in allocations:
            self.pool.forget_rest(allocation.handle, allocation.length)

    def commit(self, allocation: Allocation, log: "array[int]") -> None:
        """Put everything that a turn has computed into the tree, for others to share."""
        before, start = allocation.node, allocation.shared
        if start == allocation.length:
            return
        node = self.tree.insert(allocation.owner, tokens_of(log, allocation.length))
        if node is None:
            return
        node.pin()
        for part in node.path():
            if part.end <= start:
                continue
            if part.device is None:
                self.pool.hold(part, allocation.handle)
            else:
                self.pool.replace(part, allocation.handle)
        self.pool.adopt(allocation.handle)
        allocation.node = node
        if before is not None:
            before.pin(-1)

    def release(self, allocation: Allocation, log: "array[int] | None", key: str | None, pause: float = 0.0) -> None:
        """Free a turn's allocation. Its computed state stays for the session `key`, if the log is given.

        Without a log nothing more is committed. Without a key only shared state stays.
        """
        if log is not None:
            self.commit(allocation, log)
        node = allocation.node
        self.pool.forget_rest(allocation.handle, allocation.shared)
        allocation.handle.running = False
        path = node.path() if node else []
        if allocation.handle.nodes:
            for part in path:
                self.pool.move(part, allocation.handle)
        else:
            self.pool.release(allocation.handle)
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
        """Start reading the part of a prompt that is on disk only; returns whether a turn must wait for it."""
        return self.disk.on and self.disk.fetch(self._known_nodes(owner, log))

    def forget(self, key: str) -> None:
        """Free the state of a session that no other session shares."""
        self._recovered.discard(key)
        self._prune(self.tree.detach(key))

    def retain(self, keys: Collection[str]) -> None:
        """Free the state of the previous worker's sessions that are not among these."""
        for key in self._recovered.difference(keys):
            self.forget(key)

    def recovered(self) -> Iterator[tuple[str, str, Tokens]]:
        """Yield the sessions of the previous worker with their owners and tokens."""
        for key in self._recovered:
            if (node := self.tree.end_of(key)) is not None:
                yield key, owner_of(node), spelled(node)

    def expect(self, key: str, pause: float) -> None:
        """Note the pause before a session's next turn."""
        node = self.tree.end_of(key)
        self._touch(node.path() if node else [], pause)

    def make_room(self, cells: int) -> bool:
        """Evict until this many cells are free; false when nothing more can be evicted."""
        while self.pool.cells_free < cells:
            if not self.evict_one():
                return False
        return True

    def evict_one(self) -> bool:
        """Evict the most dispensable node from the device; false when all nodes there are in use."""
        victim = max(filter(self._evictable, self.pool.nodes), key=dispensable(time.monotonic()), default=None)
        if victim is not None:
            self._evict(victim)
        return victim is not None

    def _evict_all(self) -> bool:
        """Evict all nodes that are not in use from the device; false when there are none."""
        evicted = False
        while self.evict_one():
            evicted = True
        return evicted

    def evict_rested(self) -> None:
        """Evict nodes that were idle for a while: idle cells make every step slower."""
        limit = time.monotonic() - self._idle_seconds
        rested = [node for node in self.pool.nodes if not node.pins and node.used < limit]
        for node in sorted(rested, key=lambda node: node.end, reverse=True):
            if node.device is not None and self._evictable(node):
                self._evict(node)

    def check_integrity(self) -> list[str]:
        """Compare the records with each other and with the device; every line is a violation."""
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
        """Find the node after which a log continues; split a node if necessary."""
        return self.tree.insert(owner, tokens_of(log, self.known(owner, log)))

    def _known_nodes(self, owner: str, log: "array[int]") -> Sequence[Node]:
        """List the nodes on a prompt's path."""
        return self.tree.match(owner, tokens_of(log, len(log) - 1)).nodes

    def _place(self, allocation: Allocation, length: int, spare: int, *, alone: bool) -> Allocation | None:
        path = allocation.node.path() if allocation.node else []
        missing = [node for node in path if node.device is None]
        saved = [(blob, list(nodes)) for blob, nodes in groupby(missing, key=lambda node: node.memory)]
        needed = sum(blob.end - blob.start for blob, _ in saved if blob)
        if not self.make_room(needed + length - allocation.shared + spare) and not alone:
            return None
        handle = self._take_handle()
        if handle is None:
            return None
        self.pool.share(path, handle)
        if not all(self.pool.restore(nodes, handle) for _, nodes in saved):
            handle.running = False
            for node in list(handle.nodes):
                self.pool.drop(node)
            if handle.id in self.pool.handles:
                self.pool.release(handle)
            return None
        allocation.handle = handle
        handle.length = allocation.shared
        self._touch(path)
        return allocation

    def _take_handle(self) -> SequenceHandle | None:
        while (handle := self.pool.take()) is None:
            if not self.evict_one():
                return None
        return handle

    def _evictable(self, node: Node) -> bool:
        return not node.pins and all(child.device is None for child in node.children.values())

    def _evict(self, node: Node) -> None:
        if not node.written:
            self._store(node)
        self.pool.drop(node)
        if not node.kept:
            self._lose(node)


def tokens_of(log: "array[int]", length: int) -> Tokens:
    """Copy the beginning of a log (a view would keep the log from growing)."""
    return np.array(log[:length], dtype=np.int32)


# Large state is copied to memory in pieces, one between two steps, so no stream waits for the whole copy.


class Copying:
    """Queue of nodes on the device that are still to be copied.

    A node that was split meanwhile is copied from its beginning; an evicted one needs no copy, as eviction copies it.
    """

    def __init__(self, pool: Pool, piece_bytes: int = PIECE_BYTES) -> None:
        self.piece_bytes = piece_bytes
        self._pool = pool
        self._due: deque[Node] = deque()
        self._copied: _Copied | None = None

    def __len__(self) -> int:
        return len(self._due)

    def takes(self, node: Node) -> bool:
        """Queue a node whose state is large; false when it is small enough to be copied at once."""
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
        """Compare the due copies with the existing ones; every line is a violation."""
        copied, problems = self._copied, []
        if len(set(self._due)) != len(self._due):
            problems.append("a node is to be copied twice")
        if copied is not None and (copied.node not in self._due or not copied.start <= copied.place <= copied.end):
            problems.append("pieces are kept of a node that is not to be copied")
        return problems


class _Copied:
    """The existing pieces of a copy."""

    def __init__(self, node: Node) -> None:
        self.node, self.start, self.end = node, node.start, node.end
        self.pieces: list[StatePiece] = []

    @property
    def place(self) -> int:
        """The first position that is not copied."""
        return self.pieces[-1].end if self.pieces else self.start


def _is_due(node: Node) -> bool:
    return node.parent is not None and node.device is not None and node.memory is None
