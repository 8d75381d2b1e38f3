"""The third place for state, behind the device and memory: files, if a folder is given.

What a turn leaves in memory is written in the background. A turn whose prompt goes on from state that is on disk only
waits, beside the others, until it is read. On each hit the file must name the same owner, positions and tokens as the
tree; else, or when it is damaged, it is removed and the state computed again.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from cfs_server.engine.disk.archive import Archive, Done, Write
from cfs_server.engine.disk.folder import Found, new_name
from cfs_server.engine.disk.form import Head
from cfs_server.engine.prefixes.disk import Disk, Entry
from cfs_server.engine.prefixes.memory import Blob
from cfs_server.engine.prefixes.tree import Node, owner_of, spelled

_HEAD_BYTES, _PIECE_BYTES = 512, 64
"""What a head takes beside its tokens, and for each piece, at most: the limit is kept by what is booked."""


class DiskTier:
    """Books of the files, and orders to the thread that has them; without an archive nothing is ever on disk."""

    def __init__(self, archive: Archive | None = None, limit: int = 0) -> None:
        self.books = Disk(limit)
        self.reads = self.problems = 0
        self._archive = archive
        self._named: dict[str, Entry] = {}
        self._order: list[str] = []

    @property
    def on(self) -> bool:
        """Whether there is a disk."""
        return self._archive is not None

    def gauges(self) -> dict[str, float]:
        """Say how much is kept, for `/metrics`."""
        if self._archive is None:
            return {}
        return {
            "disk_bytes": float(self.books.used),
            "disk_files": float(len(self.books)),
            "disk_limit_bytes": float(self.books.limit),
            "disk_reads": float(self.reads),
            "disk_refused": float(self._archive.refused + self.problems),
        }

    def found(self) -> list[Found]:
        """Take the files of the worker before, shortest prompts first: what a run goes on from comes before it."""
        if self._archive is None:
            return []
        found, self._archive.found = self._archive.found, []
        self._order = [file.name for file in found]
        return sorted(found, key=lambda file: file.head.end)

    def recover(self, file: Found, node: Node) -> None:
        """Let a node have the file of a worker before."""
        size = _booked(file.head.end, file.head.state_bytes, len(file.head.pieces))
        entry = Entry(file.head.start, file.head.end, size, file.name)
        self._named[entry.name] = entry
        self.books.add(entry, node)

    def put_in_order(self) -> None:
        """Count files as used when they were, after all are recovered."""
        for name in self._order:
            if name in self._named:
                self.books.touch(self._named[name])
        self._order.clear()

    def refuse(self, file: Found) -> None:
        """Remove a file that is of no use."""
        if self._archive is not None:
            self._archive.remove(file.name)

    def write(self, node: Node) -> None:
        """Have a node's state in memory written, if it is not on disk and may be."""
        blob = node.memory
        if self._archive is None or node.disk is not None or blob is None or blob.end != node.end:
            return
        if blob.start not in (0, node.start):
            return  # a run that was cut after it was saved: its upper part has the file
        tokens, size = spelled(node), _booked(node.end, blob.size, len(blob.data))
        if size > self.books.limit:
            return
        name = new_name()
        order = Write(name, owner_of(node), tuple(sorted(node.sessions)), blob.start, tokens, blob.data, size)
        if self._archive.write(order):
            entry = self._named[name] = Entry(blob.start, blob.end, size, name)
            self.books.add(entry, node)

    def free(self, node: Node) -> None:
        """Let a node have nothing on disk; the file goes with the last that had it."""
        entry = self.books.free(node)
        if entry is not None and self._archive is not None:
            del self._named[entry.name]
            self._archive.remove(entry.name)

    def fetch(self, nodes: Iterable[Node]) -> bool:
        """Have read what of some nodes is nowhere else; whether there is anything to wait for."""
        entries = {node.disk for node in nodes if not node.near and node.disk is not None}
        for entry in entries:
            if not entry.reading and self._archive is not None:
                entry.reading = True
                self._archive.read(entry.name)
        return bool(entries)

    def results(self) -> Iterator[tuple[Entry, Blob | None]]:
        """Yield the files that were read, with their state, and without it those that must be given up."""
        for done in self._archive.results() if self._archive is not None else ():
            entry = self._named.get(done.name)
            if entry is None:
                continue  # all who had it are gone
            if done.head is not None:
                entry.reading = False
            blob = _blob(entry, done)
            if blob is not None:
                self.reads += 1
                self.books.touch(entry)
                yield entry, blob
            elif done.problem or done.head is not None:
                self.problems += 1
                yield entry, None

    def close(self) -> None:
        """Write what waits, and let go of the folder."""
        if self._archive is not None:
            self._archive.close()

    def check_integrity(self, nodes: Sequence[Node]) -> list[str]:
        """Compare the books with the nodes and with each other; every line is a violation."""
        problems = self.books.check_integrity(nodes)
        if set(self._named.values()) != set(self.books.oldest()):
            problems.append("files and their names do not agree")
        return problems


def _blob(entry: Entry, done: Done) -> Blob | None:
    """Make a copy in memory of a file that is what the books say that it is."""
    head = done.head
    if head is None or not done.pieces or not _fits(entry, head):
        return None
    size = sum(piece.state.nbytes for piece in done.pieces)
    return Blob(head.start, head.end, size, done.pieces, users=0)


def _fits(entry: Entry, head: Head) -> bool:
    node = max(entry.nodes, key=lambda each: each.end)
    tokens = spelled(node)
    same = np.array_equal(head.tokens[: len(tokens)], tokens)
    return same and (head.owner, head.start, head.end) == (owner_of(node), entry.start, entry.end)


def _booked(tokens: int, state_bytes: int, pieces: int) -> int:
    return _HEAD_BYTES + _PIECE_BYTES * pieces + 4 * tokens + state_bytes
