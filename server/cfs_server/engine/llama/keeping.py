"""What is kept of the computation, and where: on the device, in memory, on disk.

The books of the three places and of the tree change together here: what is nowhere any more leaves the tree, with all
that needs it. Who runs where is `residency.Residency`'s business.
"""

import time
from collections.abc import Sequence
from itertools import chain, takewhile

from cfs_server.engine.llama.copying import Copying
from cfs_server.engine.llama.disk_tier import DiskTier
from cfs_server.engine.llama.ffi import Context
from cfs_server.engine.llama.pool import Pool
from cfs_server.engine.prefixes.disk import Entry
from cfs_server.engine.prefixes.memory import Blob, Memory
from cfs_server.engine.prefixes.policy import dispensable
from cfs_server.engine.prefixes.shelf import Shelf
from cfs_server.engine.prefixes.tree import Node, PrefixTree


class Keeping:
    """Moves state between its places, within the limits of each."""

    def __init__(self, context: Context, memory_bytes: int, idle_seconds: float, disk: DiskTier | None = None) -> None:
        self.pool = Pool(context)
        self.disk = disk or DiskTier()
        self.memory = Memory(memory_bytes)
        self.tree = PrefixTree(self._on_split)
        self.copying = Copying(self.pool)
        self._stored = Shelf()
        self._idle_seconds = idle_seconds
        self._recover()

    @property
    def partial(self) -> bool:
        """Whether a turn can go on from the middle of another's state."""
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
        """Say how much there is and how much is kept, for `/metrics`."""
        return {
            "cells_total": float(self.pool.cells),
            "parked_bytes": float(self.memory.used),
            "prefix_nodes": float(self.nodes),
        } | self.disk.gauges()

    def collect(self) -> None:
        """Take in what was read since the last time; what cannot be read or written is given up."""
        for entry, blob in self.disk.results():
            for node in sorted(entry.nodes, key=lambda each: each.end, reverse=True):
                if blob is None:
                    self._give_up(node)
                elif node.memory is None:
                    self._take_in(node, blob)
            if blob is not None and blob.users:
                self.trim_memory()

    def _near(self, node: Node | None) -> Node | None:
        """Go up from a node until nothing on the way is on disk only."""
        path = node.path() if node else []
        near = list(takewhile(lambda part: part.near, path))
        return near[-1] if near else None

    def _store(self, node: Node) -> None:
        """Copy a node's state to memory, if it is not there, and keep memory within its limit.

        State of a prompt that is larger than all of memory would drive out everything else, and itself: it is left.
        """
        if self._wanted_in_memory(node):
            self._in_memory(node, self.pool.save(node))
        self.trim_memory()

    def _store_in_time(self, node: Node) -> None:
        """Copy a node's state to memory, at once or, when that takes long, in pieces between the next steps."""
        if not (self._wanted_in_memory(node) and self.copying.takes(node)):
            self._store(node)

    def copy_some(self) -> None:
        """Copy one piece of what is large; what is complete goes to disk, too."""
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
        """Keep memory within its limit."""
        while self.memory.full:
            twice = (node for node in self.pool.nodes if node.memory is not None)
            candidates = chain(twice, self._stored.oldest(self._discardable))
            self._discard(max(candidates, key=dispensable(time.monotonic())))

    def _discardable(self, node: Node) -> bool:
        return node.device is not None or not (node.pins or (node.children and node.disk is None))

    def _discard(self, node: Node) -> None:
        """Drop a copy in memory; what is neither on the device nor on disk is lost."""
        if node.memory is not None:
            self.memory.free(node.memory)
            node.memory = None
            self._stored.discard(node)
        if not node.kept:
            self._lose(node)

    def _write(self, node: Node) -> None:
        """Have a node's state written to disk, and keep that within its limit."""
        self.disk.write(node)
        self._trim_disk()

    def _trim_disk(self) -> None:
        while self.disk.books.full:
            files = self.disk.books.oldest()
            oldest = next(filter(self._removable, files), next(self.disk.books.oldest()))
            for each in sorted(oldest.nodes, key=lambda each: each.end, reverse=True):
                self._give_up(each)

    def _removable(self, entry: Entry) -> bool:
        return all(node.near or not set(node.children.values()) - entry.nodes for node in entry.nodes)

    def _give_up(self, node: Node) -> None:
        """Remove what a node has on disk; what is nowhere else is lost."""
        self.disk.free(node)
        if not node.kept:
            self._lose(node)

    def _take_in(self, node: Node, blob: Blob) -> None:
        """Let a node have a copy in memory that was read."""
        if blob.users:
            self.memory.share(blob)
        else:
            blob.users = 1
            self.memory.add(blob)
        node.memory = blob
        node.used = time.monotonic()
        self._stored.add(node)

    def _recover(self) -> None:
        """Take over the files of the worker before; one that nothing leads to, or that adds nothing, is removed."""
        for file in self.disk.found():
            head = file.head
            known = self.tree.match(head.owner, head.tokens).length
            if (self.partial and known < head.start) or known == head.end:
                self.disk.refuse(file)
                continue
            node = self.tree.insert(head.owner, head.tokens)
            if node is not None:
                self.disk.recover(file, node)
                for key in head.sessions:
                    self.tree.attach(key, node)
        for node in list(self.tree):  # what no session ends at, or below, nobody could delete
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
        """Note that nodes were used, and the pause until they will be again: for shared ones the shortest counts."""
        now = time.monotonic()
        for node in path:
            node.used = now
            node.pause = pause if len(node.children) < 2 else min(node.pause, pause)
            self._stored.touch(node)
            if node.disk is not None:
                self.disk.books.touch(node.disk)
