"""The prefix tree: runs of tokens whose state is kept, each run once however many sessions go through it.

A node is a run of tokens after its parent's. Every owner has a tree of its own, so nobody learns from a hit or its
speed what another has said. A look-up compares the tokens themselves. A session is attached to the node at which its
newest state ends; what no session is attached to, or below, has no reason to stay.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cfs_server.engine.prefixes.disk import Entry
from cfs_server.engine.prefixes.memory import Blob

Tokens = NDArray[np.int32]


@dataclass(eq=False, slots=True)
class Node:
    """A run of tokens; its state is on the device (`device` names the sequence), in memory, on disk or nowhere.

    `pins` counts the running turns whose state goes through here. `used` is when a turn last did, in seconds
    of `time.monotonic`, and `pause` how many seconds later the next is thought to come.
    """

    tokens: Tokens
    start: int = 0
    parent: "Node | None" = None
    children: "dict[int, Node]" = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    device: int | None = None
    memory: Blob | None = None
    disk: Entry | None = None
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
        """Whether a turn can go on from it at once."""
        return self.device is not None or self.memory is not None

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
class Match:
    """How much of a prompt the tree knows: the nodes, of which the last may be known in part only."""

    nodes: tuple[Node, ...]
    length: int


class PrefixTree:
    """All nodes of all owners. `on_split(upper, lower)` is told when a node was cut into two."""

    def __init__(self, on_split: Callable[[Node, Node], None] = lambda _upper, _lower: None) -> None:
        self._roots: dict[str, Node] = {}
        self._ends: dict[str, Node] = {}
        self._on_split = on_split

    def match(self, owner: str, tokens: Tokens) -> Match:
        """Find the longest known beginning of some tokens."""
        nodes: list[Node] = []
        place = 0
        node = self._roots.get(owner)
        while node is not None and place < len(tokens):
            child = node.children.get(int(tokens[place]))
            if child is None:
                break
            same = _same(child.tokens, tokens[place:])
            nodes.append(child)
            place += same
            node = child if same == len(child.tokens) else None
        return Match(tuple(nodes), place)

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
        """Let a node take in its parent, if nothing else ends or branches off there; returns the one that is gone."""
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
        """Say that a session's newest state ends at a node; returns where it ended before."""
        before = self.detach(key)
        self._ends[key] = node
        node.sessions.add(key)
        return before

    def detach(self, key: str) -> Node | None:
        """Say that a session has nothing here any more; returns where it ended."""
        node = self._ends.pop(key, None)
        if node is not None:
            node.sessions.discard(key)
        return node

    def end_of(self, key: str) -> Node | None:
        """Where a session's newest state ends."""
        return self._ends.get(key)

    def unwanted(self, node: Node | None) -> Iterator[Node]:
        """Yield a node and those above it as long as nobody needs them; the caller removes each."""
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

    def _split(self, node: Node, place: int) -> Node:
        """Cut a node at a position inside of it and return the upper part; the lower one stays the same object."""
        parent, size = node.parent, place - node.start
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
        node.tokens, node.start, node.parent = node.tokens[size:].copy(), place, upper
        upper.children[int(node.tokens[0])] = node
        self._on_split(upper, node)
        return upper


def owner_of(node: Node) -> str:
    """Say in whose tree a node is."""
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
