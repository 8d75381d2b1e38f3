"""Waiting items in the order of fair shares: thousands of them cost hardly more than a few.

The items are the leaves of a tree: owners, their kinds of work, their accounts. Each node has a heap of the nodes below
it, by the rank of the first item in each. Shares grow meanwhile, so a key in a heap may be too low, but never too high.
It is corrected when it comes first. A share that grows makes one key of each level wrong, not those of all items.
"""

import heapq
from collections import defaultdict
from collections.abc import Generator, Hashable, Iterator
from contextlib import closing
from typing import Generic, TypeVar

from cfs_server.engine.contract.fairness import Fairness, Path

T = TypeVar("T", bound=Hashable)
_Node = tuple[str | int, ...]
"""The root is empty. A leaf is a path and a place in the order of arrival."""
_Key = tuple[float, ...]
_LEAF = 4


class FairQueue(Generic[T]):
    """Items by the rank of their path, then by their arrival. Their paths have to be active in `fairness`."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._places: dict[T, tuple[Path, int]] = {}
        self._items: dict[_Node, T] = {}
        self._below: defaultdict[_Node, list[tuple[_Key, _Node]]] = defaultdict(list)
        self._keys: dict[_Node, _Key] = {}
        """The key of each node in the heap above it. Other entries of the heap are void."""
        self._front, self._back = 0, 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: object) -> bool:
        return item in self._places

    def add(self, item: T, path: Path, *, first: bool = False) -> None:
        """Add an item as the last one of those with the same rank, or as the first one."""
        if first:
            self._front -= 1
        else:
            self._back += 1
        place = self._front if first else self._back
        leaf = (*path, place)
        key = _leaf_key(leaf)
        self._places[item], self._items[leaf] = (path, place), item
        for depth in range(_LEAF, 0, -1):
            if not self._list(leaf[:depth], key):
                return
            key = self._key(leaf[: depth - 1], key)

    def remove(self, item: T) -> Path:
        """Remove an item, and return its path. Raises `KeyError`."""
        path, place = self._places.pop(item)
        del self._items[*path, place]
        self._keys.pop((*path, place), None)
        if not self._items:
            self._below.clear()
            self._keys.clear()
        return path

    def first(self) -> T | None:
        """Return the item with the lowest rank."""
        if self._best(()) is None:
            return None
        node: _Node = ()
        while len(node) < _LEAF:
            node = self._below[node][0][1]
        return self._items[node]

    def in_order(self) -> Iterator[T]:
        """Yield the items by rank. Only the one that was yielded last may be removed meanwhile, and none added."""
        with closing(self._walk(())) as ranked:
            for _, item in ranked:
                yield item

    def _key(self, node: _Node, first: _Key) -> _Key:
        """Return the key of a node by the key of what is first below it."""
        return (self._fairness.had(node), *first) if node else first

    def _list(self, node: _Node, key: _Key) -> bool:
        """Put a node into the heap above it, unless it is there with a lower key."""
        listed = self._keys.get(node)
        if listed is not None and listed <= key:
            return False
        self._keys[node] = key
        heapq.heappush(self._below[node[:-1]], (key, node))
        return True

    def _best(self, node: _Node) -> _Key | None:
        """Correct the first keys below a node. Return its own one; None if there is no item below it."""
        if len(node) == _LEAF:
            return _leaf_key(node) if node in self._items else None
        heap = self._below[node]
        while heap:
            key, child = heap[0]
            if self._keys.get(child) != key:
                heapq.heappop(heap)
            elif (best := self._best(child)) == key:
                return self._key(node, key)
            elif best is None:
                heapq.heappop(heap)
                del self._keys[child]
            else:
                self._keys[child] = best
                heapq.heapreplace(heap, (best, child))
        del self._below[node]
        return None

    def _walk(self, node: _Node) -> Generator[tuple[_Key, T]]:
        """Yield the items below a node with their keys. What it takes from the heaps comes back at its end."""
        if len(node) == _LEAF:
            yield _leaf_key(node), self._items[node]
            return
        taken: list[tuple[_Node, Generator[tuple[_Key, T]]]] = []
        following: list[tuple[_Key, T, Generator[tuple[_Key, T]]]] = []
        try:
            while True:
                while self._best(node) is not None and not (following and following[0][0] < self._below[node][0][0]):
                    _, child = heapq.heappop(self._below[node])
                    del self._keys[child]
                    walk = self._walk(child)
                    taken.append((child, walk))
                    heapq.heappush(following, (*next(walk), walk))
                if not following:
                    return
                key, item, walk = heapq.heappop(following)
                yield self._key(node, key), item
                if (another := next(walk, None)) is not None:
                    heapq.heappush(following, (*another, walk))
        finally:
            for child, walk in taken:
                walk.close()
                if (best := self._best(child)) is not None:
                    self._list(child, best)

    def check_integrity(self) -> list[str]:
        """Compare the tree with the items; every line is a violation."""
        leaves = {(*path, place): item for item, (path, place) in self._places.items()}
        problems = [] if leaves == self._items else ["an item that waits is lost"]
        for leaf in self._items:
            key = _leaf_key(leaf)
            for depth in range(_LEAF, 0, -1):
                node = leaf[:depth]
                listed = self._keys.get(node)
                if listed is None or listed > key or (listed, node) not in self._below[node[:-1]]:
                    problems.append(f"{node} waits and would not be found")
                key = self._key(node[:-1], key)
        return problems


def _leaf_key(leaf: _Node) -> _Key:
    return (float(leaf[-1]),)
