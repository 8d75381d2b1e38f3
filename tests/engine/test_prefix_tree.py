"""The prefix tree against a plain set of tuples: nothing found that was not put in, nothing lost, nothing leaked."""

import random

import numpy as np
import pytest

from cfs_server.engine.kvcache.radix_tree import Node, PrefixTree, Tokens

Run = tuple[int, ...]


def run(*tokens: int) -> Tokens:
    """Make tokens."""
    return np.array(tokens, dtype=np.int32)


def spelled(node: Node) -> Run:
    """All tokens from the beginning to a node's end."""
    return tuple(int(token) for part in node.path() for token in part.tokens)


def test_a_shared_beginning_is_one_node() -> None:
    """Two prompts that differ at the fourth token are three runs."""
    tree = PrefixTree()
    first = tree.insert("a", run(1, 2, 3, 4, 5))
    second = tree.insert("a", run(1, 2, 3, 9))
    assert first is not None
    assert second is not None
    assert first.parent is second.parent
    assert sorted(len(node.tokens) for node in tree) == [1, 2, 3]
    assert tree.match("a", run(1, 2, 3, 9, 9)).length == 4
    assert tree.match("a", run(1, 2, 7)).length == 2
    assert tree.match("a", run(2)).length == 0


def test_owners_do_not_meet() -> None:
    """The same tokens of another owner are not found."""
    tree = PrefixTree()
    tree.insert("a", run(1, 2, 3))
    assert tree.match("b", run(1, 2, 3)).length == 0


def test_a_prompt_that_is_known_makes_no_node() -> None:
    """And one that ends inside of a run cuts it there, telling who keeps books of nodes."""
    cuts: list[tuple[Node, Node]] = []
    tree = PrefixTree(lambda upper, lower: cuts.append((upper, lower)))
    whole = tree.insert("a", run(1, 2, 3))
    assert tree.insert("a", run(1, 2, 3)) is whole
    assert cuts == []
    part = tree.insert("a", run(1, 2))
    assert cuts == [(part, whole)]
    assert tree.insert("a", run()) is None


def test_a_session_moves_on_and_its_old_branch_is_unwanted() -> None:
    """After an edit the branch up to the shared beginning can go."""
    tree = PrefixTree()
    old, new = tree.insert("a", run(1, 2, 3)), tree.insert("a", run(1, 2, 4))
    assert old is not None
    assert new is not None
    tree.attach("s", old)
    assert tree.attach("s", new) is old
    gone = list(tree.unwanted(old))
    assert gone == [old]
    tree.remove(old)
    assert tree.match("a", run(1, 2, 3)).length == 2
    assert tree.check_integrity() == []


def test_removing_a_leaf_moves_its_sessions_up() -> None:
    """So that deleting them later frees what is left of them."""
    tree = PrefixTree()
    upper, lower = tree.insert("a", run(1, 2)), tree.insert("a", run(1, 2, 3))
    assert upper is not None
    assert lower is not None
    tree.attach("s", lower)
    with pytest.raises(ValueError, match="leaf"):
        tree.remove(upper)
    tree.remove(lower)
    assert tree.end_of("s") is upper
    tree.remove(upper)
    assert tree.end_of("s") is None
    assert list(tree) == []
    assert tree.check_integrity() == []


class Shadow:
    """What the tree should hold: for each owner the set of all beginnings of all that was put in."""

    def __init__(self) -> None:
        self.known: dict[str, set[Run]] = {}

    def put(self, owner: str, tokens: Run) -> None:
        """Add tokens and all their beginnings."""
        self.known.setdefault(owner, set()).update(tokens[:end] for end in range(1, len(tokens) + 1))

    def longest(self, owner: str, tokens: Run) -> int:
        """Length of the longest beginning that is there."""
        known = self.known.get(owner, set())
        return max((end for end in range(1, len(tokens) + 1) if tokens[:end] in known), default=0)

    def take(self, owner: str, tokens: Run, size: int) -> None:
        """Remove the last `size` beginnings of a run that nothing goes on from."""
        for end in range(len(tokens) - size + 1, len(tokens) + 1):
            self.known[owner].remove(tokens[:end])


@pytest.mark.parametrize(
    "operations", [5_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_random_operations_agree_with_a_plain_set(operations: int) -> None:
    """Insert, look up, attach, detach, remove: never a foreign token, and the shape stays sound."""
    dice = random.Random(operations)
    tree, shadow = PrefixTree(), Shadow()
    owners = ("a", "b", "c")
    ends: dict[str, tuple[str, Run]] = {}

    def tokens(owner: str) -> Run:
        known = sorted(shadow.known.get(owner, ()), key=len)[-40:]
        start = dice.choice(known) if known and dice.random() < 0.7 else ()
        start = start[: dice.randrange(len(start) + 1)]
        return (start + tuple(dice.randrange(3) for _ in range(dice.randrange(1, 9))))[:24]

    for number in range(operations):
        owner, action, key = dice.choice(owners), dice.random(), f"s{dice.randrange(12)}"
        wanted = tokens(owner)
        if action < 0.25:
            node = tree.insert(owner, run(*wanted))
            assert node is not None
            assert spelled(node) == wanted
            shadow.put(owner, wanted)
            tree.attach(key, node)
            ends[key] = (owner, wanted)
        elif action < 0.5:
            match = tree.match(owner, run(*wanted))
            assert match.length == shadow.longest(owner, wanted)
            if match.nodes:
                assert spelled(match.nodes[-1])[: match.length] == wanted[: match.length]
        elif action < 0.6:
            tree.detach(key)
            ends.pop(key, None)
        else:
            leaves = [(name, leaf) for name in owners for leaf in _leaves(tree, name)]
            if leaves and (len(leaves) > 20 or action < 0.7):
                name, leaf = dice.choice(leaves)
                run_up_to, size = spelled(leaf), len(leaf.tokens)
                tree.remove(leaf)
                shadow.take(name, run_up_to, size)
                for other, (whose, end) in list(ends.items()):
                    if whose == name and end == run_up_to:
                        ends[other] = (whose, end[:-size])
                        if not end[:-size]:
                            del ends[other]
        if number % 50 == 0:
            assert tree.check_integrity() == []
            held = {name: {spelled(node) for node in tree._roots[name].below()} for name in tree._roots}
            assert all(ends_here <= shadow.known[name] for name, ends_here in held.items())
            for session, (name, end) in ends.items():
                at = tree.end_of(session)
                assert at is not None
                assert spelled(at) == end
                assert at in set(tree._roots[name].below())
    assert tree.check_integrity() == []


def _leaves(tree: PrefixTree, owner: str) -> list[Node]:
    root = tree._roots.get(owner)
    return [node for node in root.below() if not node.children] if root else []
