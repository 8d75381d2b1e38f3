"""Items that wait, in the order of fair shares: as a sorted list has them, at a cost that does not grow with them."""

import random
from itertools import islice

import pytest

from cfs_server.engine.contract.fair_queue import FairQueue
from cfs_server.engine.contract.fairness import WEIGHTS, Fairness, Path
from tests.engine.support import looks_at_shares


class SortedQueue:
    """The model: items with their paths and their places, sorted when they are read."""

    def __init__(self, fairness: Fairness) -> None:
        self.items: dict[int, tuple[Path, int]] = {}
        self._fairness = fairness

    @property
    def in_order(self) -> list[int]:
        return sorted(self.items, key=lambda item: (self._fairness.rank(self.items[item][0]), self.items[item][1]))


def test_random_arrivals_and_charges_agree_with_a_sorted_list() -> None:
    """Whatever comes, goes, is charged or comes first: the order is that of the ranks, then of the arrival."""
    dice, fairness = random.Random(5), Fairness()
    queue, model = FairQueue[int](fairness), SortedQueue(fairness)
    for number in range(1500):
        deed = dice.random()
        if deed < 0.45 or not model.items:
            path: Path = (dice.choice("abc"), dice.choice(list(WEIGHTS)), dice.choice("wxyz"))
            fairness.join(path)
            first = dice.random() < 0.2
            queue.add(number, path, first=first)
            model.items[number] = path, -number if first else number
        elif deed < 0.8:
            item = dice.choice([*model.items])
            path, _ = model.items.pop(item)
            assert queue.remove(item) == path
            fairness.leave(path)
        else:
            fairness.charge(dice.choice([*model.items.values()])[0], dice.random())
        expected = model.in_order
        assert queue.first() == (expected[0] if expected else None)
        assert list(islice(queue.in_order(), 5)) == expected[:5]
        assert queue.check_integrity() == []
    assert list(queue.in_order()) == model.in_order
    assert len(queue) == len(model.items)


def test_items_may_leave_as_they_are_passed() -> None:
    """The rest comes in its order, also to the next who looks."""
    fairness = Fairness()
    queue = FairQueue[int](fairness)
    for number in range(20):
        path: Path = ("one" if number % 2 else "two", "interactive", str(number % 5))
        fairness.join(path)
        queue.add(number, path)
    passed = list[int]()
    for item in queue.in_order():
        passed.append(item)
        if item % 3:
            queue.remove(item)
    assert passed == list(range(20))
    assert list(queue.in_order()) == [0, 3, 6, 9, 12, 15, 18]
    assert queue.check_integrity() == []


@pytest.mark.parametrize("crowd", ["sessions", "owners", "turns"])
def test_the_first_is_found_without_a_look_at_the_others(crowd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand items are served with some looks each, whether of one owner, of many, or of one session."""
    looks = looks_at_shares(monkeypatch)
    fairness = Fairness()
    queue = FairQueue[int](fairness)
    for number in range(10_000):
        path: Path = (f"o{number}" if crowd == "owners" else "o", "agent", f"s{number}" if crowd == "sessions" else "s")
        fairness.join(path)
        queue.add(number, path)
    served = list[int]()
    while (item := queue.first()) is not None:
        path = queue.remove(item)
        fairness.charge(path, 1.0)
        fairness.leave(path)
        served.append(item)
    assert served == list(range(10_000))
    assert len(looks) < 20 * 10_000
