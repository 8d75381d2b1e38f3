"""The index finds the same victim as looking at all nodes does, and quickly."""

import random

import numpy as np

from cfs_server.engine.kvcache.radix_tree import LRUIndex, Node, dispensable

PAUSES = (0.0, 5.0, 30.0, 60.0)


def test_the_victim_is_that_of_a_search_through_all_nodes() -> None:
    """Nodes come, are used, are used with another pause, and go; some may not be taken."""
    dice, index, nodes = random.Random(5), LRUIndex(), list[Node]()
    for now in range(4000):
        action = dice.random()
        if action < 0.4 or not nodes:
            nodes.append(
                Node(np.zeros(1, dtype=np.int32), used=now - dice.choice([0.0, 20.0]), pause=dice.choice(PAUSES))
            )
            index.add(nodes[-1])
        elif action < 0.7:
            node = dice.choice(nodes)
            node.used, node.pause = float(now), dice.choice(PAUSES)
            index.touch(node)
        elif action < 0.9:
            index.discard(nodes.pop(dice.randrange(len(nodes))))
        else:
            dice.choice(nodes).pins ^= 1
        rank = dispensable(now + dice.random() * 100)
        wanted = max((rank(node) for node in nodes if not node.pins), default=None)
        found = max(index.oldest(lambda node: not node.pins), key=rank, default=None)
        assert (rank(found) if found else None) == wanted
        assert len(index) == len(nodes)
    assert index.check_integrity() == []
    for node in nodes:
        index.discard(node)
    assert not list(index)
    assert not index._by_pause


def test_a_node_that_is_not_here_is_not_taken_in_by_its_use() -> None:
    """Touching and discarding it do nothing."""
    index, node = LRUIndex(), Node(np.zeros(1, dtype=np.int32))
    index.touch(node)
    index.discard(node)
    assert node not in index


def test_few_nodes_are_looked_at() -> None:
    """Of twenty thousand only those that may not be taken, and one for each pause."""
    index, looked = LRUIndex(), list[Node]()
    for number in range(20_000):
        index.add(Node(np.zeros(1, dtype=np.int32), used=float(number), pause=PAUSES[number % 4], pins=number < 8))

    def allowed(node: Node) -> bool:
        looked.append(node)
        return not node.pins

    assert max(index.oldest(allowed), key=dispensable(3e4)).used == 8.0
    assert len(looked) == 12
