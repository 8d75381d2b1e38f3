"""The prefix tree: runs of tokens with saved state. Sessions with the same prefix share its nodes.

A node is a run of tokens that follows its parent's. Every owner has a separate tree, so the speed of a hit reveals
nothing about another owner's text. A look-up compares the tokens themselves. A session is attached to the node at which
its newest state ends. A node with no session at it or below it can be removed.
"""

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The total size has a limit. A file is removed with the last node that refers to it.


@dataclass(eq=False, slots=True)
class StateFile:
    """A file with the state of the positions from `start` to `end`; nodes that were one when it was written share it.

    While it is `reading`, a turn waits for it. Before it is `written`, its state is in memory.
    """

    start: int
    end: int
    size: int
    name: str
    nodes: "set[Node]" = field(default_factory=set)
    reading: bool = False
    written: bool = False


class DiskUsage:
    """Counts the bytes of all files, and returns the least recently used one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._entries: OrderedDict[StateFile, None] = OrderedDict()

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

    def add(self, entry: StateFile, node: "Node") -> None:
        """Count a new file and attach it to a node."""
        self.used += entry.size
        self._entries[entry] = None
        self.share(entry, node)

    def share(self, entry: StateFile, node: "Node") -> None:
        """Attach a file to one more node."""
        node.disk = entry
        entry.nodes.add(node)

    def free(self, node: "Node") -> StateFile | None:
        """Detach a node from its file; return the file if it must be removed."""
        entry, node.disk = node.disk, None
        if entry is None:
            return None
        entry.nodes.discard(node)
        if entry.nodes:
            return None
        self.used -= entry.size
        del self._entries[entry]
        return entry

    def touch(self, entry: StateFile) -> None:
        """Note that a file was used."""
        if entry in self._entries:
            self._entries.move_to_end(entry)

    def oldest(self) -> Iterator[StateFile]:
        """Go through the files, those used longest ago first."""
        return iter(list(self._entries))

    def check_integrity(self, nodes: "Iterable[Node]") -> list[str]:
        """Compare the records with the nodes that refer to files; every line is a violation."""
        held = {node: node.disk for node in nodes if node.disk is not None}
        booked = {node: entry for entry in self._entries for node in entry.nodes}
        problems = [] if held == booked else ["nodes and the files that they refer to do not agree"]
        if any(not entry.nodes for entry in self._entries):
            problems.append("a file is kept that no node refers to")
        if (size := sum(entry.size for entry in self._entries)) != self.used:
            problems.append(f"{self.used} bytes are booked on disk, {size} are there")
        if self.full:
            problems.append(f"{self.used} bytes are kept on disk where {self.limit} may be")
        return problems


# The total size has a limit. A copy is freed with the last node that refers to it.


@dataclass(eq=False, slots=True)
class Blob:
    """The state of the positions from `start` to `end`; nodes that were one when it was saved share it."""

    start: int
    end: int
    size: int
    data: Any
    users: int = 1


class Memory:
    """Counts the bytes of all blobs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def full(self) -> bool:
        """Whether something has to go."""
        return self.used > self.limit

    def add(self, blob: Blob) -> Blob:
        """Count a new blob."""
        self.used += blob.size
        return blob

    def share(self, blob: Blob | None) -> None:
        """Count one node more that refers to a blob."""
        if blob is not None:
            blob.users += 1

    def free(self, blob: Blob) -> None:
        """Count one node less."""
        blob.users -= 1
        if not blob.users:
            self.used -= blob.size
            blob.data = None

    def check_integrity(self, references: list[Blob]) -> list[str]:
        """Compare the records with the blobs that nodes refer to; every line is a violation."""
        users = Counter(references)
        problems = [
            f"a blob has {blob.users} users in place of {count}" for blob, count in users.items() if blob.users != count
        ]
        if (size := sum(blob.size for blob in users)) != self.used:
            problems.append(f"{self.used} bytes are booked, {size} are there")
        if self.full:
            problems.append(f"{self.used} bytes are kept where {self.limit} may be")
        return problems


Tokens = NDArray[np.int32]


@dataclass(eq=False, slots=True)
class Node:
    """A run of tokens; its state is on the device (`device` names the sequence), in memory, on disk or nowhere.

    `pins` counts the running turns whose state goes through here. `used` is the time of the last one, in
    seconds of `time.monotonic`, and `pause` the expected seconds until the next one.
    """

    tokens: Tokens
    start: int = 0
    parent: "Node | None" = None
    children: "dict[int, Node]" = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    device: int | None = None
    memory: Blob | None = None
    disk: StateFile | None = None
    pins: int = 0
    used: float = 0.0
    pause: float = 0.0
    owner: str = ""
    """Of the first node of an owner's tree only, which has no tokens."""

    @property
    def end(self) -> int:
        """The position after the run's last token."""
        return self.start + len(self.tokens)

    @property
    def kept(self) -> bool:
        """Whether its state is anywhere."""
        return self.near or self.disk is not None

    @property
    def near(self) -> bool:
        """Whether a turn can continue from it at once."""
        return self.device is not None or self.memory is not None

    @property
    def written(self) -> bool:
        """Whether its state is on disk and needs no memory."""
        return self.disk is not None and self.disk.written

    def pin(self, count: int = 1) -> None:
        """Count a turn whose state ends here, or -1 when it is over."""
        for node in self.path():
            node.pins += count

    def path(self) -> "list[Node]":
        """Nodes from the first run to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def below(self) -> "Iterator[Node]":
        """All nodes under this one, each after those below it."""
        order: list[Node] = []
        stack = list(self.children.values())
        while stack:
            order.append(stack.pop())
            stack.extend(order[-1].children.values())
        yield from reversed(order)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The matched part of a prompt: its nodes, of which the last may match only in part."""

    nodes: tuple[Node, ...]
    length: int


class PrefixTree:
    """All nodes of all owners. `on_split(upper, lower)` is called when a node was split."""

    def __init__(self, on_split: Callable[[Node, Node], None] = lambda _upper, _lower: None) -> None:
        self._roots: dict[str, Node] = {}
        self._ends: dict[str, Node] = {}
        self._on_split = on_split

    def match(self, owner: str, tokens: Tokens) -> PrefixMatch:
        """Find the longest known beginning of some tokens."""
        nodes: list[Node] = []
        position = 0
        node = self._roots.get(owner)
        while node is not None and position < len(tokens):
            child = node.children.get(int(tokens[position]))
            if child is None:
                break
            same = _same(child.tokens, tokens[position:])
            nodes.append(child)
            position += same
            node = child if same == len(child.tokens) else None
        return PrefixMatch(tuple(nodes), position)

    def insert(self, owner: str, tokens: Tokens) -> Node | None:
        """Make sure that a node ends exactly where these tokens do, and return it; `None` for no tokens."""
        if not len(tokens):
            return None
        match = self.match(owner, tokens)
        node = (
            match.nodes[-1]
            if match.nodes
            else self._roots.setdefault(owner, Node(np.empty(0, dtype=np.int32), owner=owner))
        )
        if match.length < node.end:
            node = self._split(node, match.length)
        if match.length < len(tokens):
            run = np.array(tokens[match.length :], dtype=np.int32)
            child = node.children[int(run[0])] = Node(run, match.length, node)
            return child
        return node

    def join(self, node: Node) -> Node | None:
        """Merge a node with its parent if nothing else ends or branches there; return the removed node."""
        above = node.parent
        if above is None or above.parent is None or len(above.children) > 1 or above.sessions:
            return None
        del above.parent.children[int(above.tokens[0])]
        node.tokens, node.start = np.concatenate([above.tokens, node.tokens]), above.start
        node.parent, above.parent = above.parent, None
        node.parent.children[int(node.tokens[0])] = node
        return above

    def remove(self, node: Node) -> None:
        """Take out a leaf; sessions that ended here now end at its parent."""
        if node.children or node.parent is None:
            raise ValueError("only a leaf can be removed")
        parent = node.parent
        del parent.children[int(node.tokens[0])]
        node.parent = None
        for key in node.sessions:
            if parent.parent is None:
                del self._ends[key]
            else:
                self._ends[key] = parent
                parent.sessions.add(key)
        node.sessions.clear()
        if parent.parent is None and not parent.children:
            self._roots = {owner: root for owner, root in self._roots.items() if root is not parent}

    def attach(self, key: str, node: Node) -> Node | None:
        """Attach a session to the node at which its newest state ends; return the previous node."""
        before = self.detach(key)
        self._ends[key] = node
        node.sessions.add(key)
        return before

    def detach(self, key: str) -> Node | None:
        """Detach a session; return the node at which it ended."""
        node = self._ends.pop(key, None)
        if node is not None:
            node.sessions.discard(key)
        return node

    def end_of(self, key: str) -> Node | None:
        """Where a session's newest state ends."""
        return self._ends.get(key)

    def unwanted(self, node: Node | None) -> Iterator[Node]:
        """Yield a node and its ancestors while they are unused; the caller removes each."""
        while node is not None and node.parent is not None and not (node.children or node.sessions or node.pins):
            above = node.parent
            yield node
            node = above

    def __iter__(self) -> Iterator[Node]:
        """Go through all nodes, each after those below it."""
        for root in list(self._roots.values()):
            yield from root.below()

    def check_integrity(self) -> list[str]:
        """Verify the shape of the tree; every line is a violation."""
        problems = [f"an owner without tokens: {owner!r}" for owner, root in self._roots.items() if not root.children]
        attached = {key: node for node in self for key in node.sessions}
        if attached != self._ends:
            problems.append("sessions and the nodes that they end at do not agree")
        for node in self:
            parent = node.parent
            if parent is None or not len(node.tokens) or parent.children.get(int(node.tokens[0])) is not node:
                problems.append(f"the node at {node.start} is not its parent's child")
            elif parent.end != node.start:
                problems.append(f"the node at {node.start} does not follow its parent, which ends at {parent.end}")
            if node.pins < sum(child.pins for child in node.children.values()):
                problems.append(f"the node at {node.start} is pinned less often than what is below it")
            if node.memory is not None and not (node.memory.start <= node.start and node.end <= node.memory.end):
                problems.append(f"the memory of the node at {node.start} is that of another run")
            if node.disk is not None and not (node.disk.start <= node.start and node.end <= node.disk.end):
                problems.append(f"the file of the node at {node.start} is that of another run")
        return problems

    def _split(self, node: Node, position: int) -> Node:
        """Cut a node at a position inside of it and return the upper part; the lower one stays the same object."""
        parent, size = node.parent, position - node.start
        if parent is None or not 0 < size < len(node.tokens):
            raise ValueError("a node is cut inside of it")
        upper = Node(
            tokens=node.tokens[:size].copy(),
            start=node.start,
            parent=parent,
            device=node.device,
            memory=node.memory,
            disk=node.disk,
            pins=node.pins,
            used=node.used,
            pause=node.pause,
        )
        parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.start, node.parent = node.tokens[size:].copy(), position, upper
        upper.children[int(node.tokens[0])] = node
        self._on_split(upper, node)
        return upper


def owner_of(node: Node) -> str:
    """Return the owner of a node's tree."""
    while node.parent is not None:
        node = node.parent
    return node.owner


def spelled(node: Node) -> Tokens:
    """All tokens from the first to a node's last."""
    return np.concatenate([part.tokens for part in node.path()])


def _same(run: Tokens, tokens: Tokens) -> int:
    """Length of the common beginning."""
    length = min(len(run), len(tokens))
    different = np.flatnonzero(run[:length] != tokens[:length])
    return int(different[0]) if len(different) else length


# Among nodes with the same expected pause the least recently used one is evicted first. So one list for each pause,
# oldest first, is enough. There are only a few different pauses.

_Entry = tuple[float, int, Node]
"""When it was used, a number that makes entries different, the node."""


class LRUIndex:
    """A set of nodes; after a change of `used` or `pause` call `touch`."""

    def __init__(self) -> None:
        self._by_pause: dict[float, list[_Entry]] = {}
        self._places: dict[Node, tuple[float, _Entry]] = {}
        self._numbers = count()

    def add(self, node: Node) -> None:
        """Add a node, or move it to the position of its pause and last use."""
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
        position = self._places.pop(node, None)
        if position is not None:
            pause, entry = position
            entries = self._by_pause[pause]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._by_pause[pause]

    def oldest(self, allowed: Callable[[Node], bool]) -> Iterator[Node]:
        """Yield, for each pause, the allowed node that was used longest ago."""
        for entries in self._by_pause.values():
            oldest = next((node for _, _, node in entries if allowed(node)), None)
            if oldest is not None:
                yield oldest

    def rested(self, limit: float) -> list[Node]:
        """List the nodes that were used before a time."""
        return [node for entries in self._by_pause.values() for _, _, node in entries[: bisect_left(entries, (limit,))]]

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
            f"the node at {node.start} was used, and the index does not know"
            for node, (pause, (used, _, _)) in self._places.items()
            if (pause, used) != (node.pause, node.used)
        ]
        entries = [entry for pause in self._by_pause.values() for entry in pause]
        if {entry[2] for entry in entries} != self._places.keys() or len(entries) != len(self._places):
            problems.append("the lists of the index and its places do not agree")
        return problems


SECONDS_UNTIL = {
    "children_done": 2.0,
    "tool_call": 5.0,
    "waiting_for_children": 30.0,
    "user_turn": 60.0,
    "interactive": 60.0,
    "agent": 5.0,
    "background": 60.0,
}
"""The expected pause before a session's next turn: by its hint, or by the kind of its last turn."""


def dispensable(now: float) -> Callable[[Node], tuple[bool, float, float]]:
    """Rank nodes: those stored twice first, then by the expected time to the next use, then by the last use.

    The length of a pause so far does not predict its end. But a session that is overdue, or that gave no hint, is
    expected to stay away for as long again as it already has.
    """
    return lambda node: (
        node.device is not None and node.memory is not None,
        max(node.pause, now - node.used),
        now - node.used,
    )
