"""Fair shares, on paper and in the engine: two owners, kinds of work, families; none starves."""

import asyncio
import random
from pathlib import Path

import pytest

from cfs_server.engine.contract.fairness import WEIGHTS, Fairness
from cfs_server.engine.contract.fairness import Path as Account
from tests.engine.support import Answer, ask, running, until
from tests.pacing.gate import Gate


def shares(fairness: Fairness, paths: list[Account], rounds: int = 4000) -> dict[Account, float]:
    """Give a second at a time to who is first; returns what part each got."""
    got = dict.fromkeys(paths, 0)
    for path in paths:
        fairness.join(path)
    for _ in range(rounds):
        first = min(paths, key=fairness.rank)
        fairness.charge(first, 1.0)
        got[first] += 1
    return {path: count / rounds for path, count in got.items()}


def test_owners_get_the_same_however_many_turns_they_have() -> None:
    """Ten sessions of one owner against one of another: half each."""
    many: list[Account] = [("many", "interactive", f"s{number}") for number in range(10)]
    got = shares(Fairness(), [*many, ("one", "interactive", "s")])
    assert got[("one", "interactive", "s")] == pytest.approx(0.5, abs=0.01)
    assert got[many[3]] == pytest.approx(0.05, abs=0.01)


def test_kinds_share_by_weight_and_none_starves() -> None:
    """Interactive work has eight times what background work has, which still goes on."""
    got = shares(Fairness(), [("o", kind, kind) for kind in WEIGHTS])
    total = sum(WEIGHTS.values())
    for (_, kind, _), part in got.items():
        assert part == pytest.approx(WEIGHTS[kind] / total, abs=0.01)


def test_children_draw_on_their_family() -> None:
    """Sixteen children of one family have together what another session has alone."""
    fairness = Fairness()
    family, other = ("o", "agent", "main"), ("o", "agent", "other")
    for _ in range(16):
        fairness.join(family)
    got = shares(fairness, [family, other])
    assert got[other] == pytest.approx(0.5, abs=0.01)


def test_idleness_saves_nothing_up() -> None:
    """Who comes after a thousand seconds shares from then on; who leaves and comes back gains nothing."""
    fairness = Fairness()
    early, late = ("early", "agent", "a"), ("late", "agent", "b")
    shares(fairness, [early], 1000)
    fairness.join(late)
    assert fairness.rank(late)[0] == fairness.rank(early)[0]
    fairness.charge(late, 5.0)
    fairness.leave(early)
    fairness.join(early)
    assert fairness.rank(early)[0] == fairness.rank(late)[0]


def test_random_joins_and_leaves_agree_with_a_list() -> None:
    """The books know who is there; when none is, they are empty."""
    dice, fairness, here = random.Random(3), Fairness(), list[Account]()
    for _ in range(3000):
        if here and dice.random() < 0.5:
            fairness.leave(here.pop(dice.randrange(len(here))))
        else:
            here.append((dice.choice("ab"), dice.choice(list(WEIGHTS)), dice.choice("xyz")))
            fairness.join(here[-1])
            fairness.charge(dice.choice(here), dice.random())
        assert fairness.check_integrity(here) == []
        for level in {level for path in here for level in (path[:1], path[:2], path)}:
            beside = {other for other in fairness._active if len(other) == len(level) and other[:-1] == level[:-1]}
            assert fairness._least_beside(level) == min(fairness._had[other] for other in beside)
    while here:
        fairness.leave(here.pop())
    assert not fairness._had


async def test_a_newcomer_does_not_wait_for_a_crowd(tiny: Path, gate: Gate) -> None:
    """One owner's twenty long turns are there first; another's short turn is over before half of them."""
    order: list[str] = []

    async def one(name: str, owner: str, tokens: int) -> Answer:
        answer = await ask(engine, f"{name} {owner}", owner=owner, max_tokens=tokens)
        order.append(owner)
        return answer

    async with running(tiny, parallel=2, flash_attention=False) as engine:
        gate.close(after=0)
        crowd = [asyncio.create_task(one(f"{number}", "crowd", 100)) for number in range(20)]
        await until(engine, lambda stats: stats.running + stats.waiting == 20)
        late = asyncio.create_task(one("late", "newcomer", 5))
        await until(engine, lambda stats: stats.running + stats.waiting == 21)
        gate.open()
        await asyncio.gather(late, *crowd)
    assert order.index("newcomer") < 10


async def test_long_turns_take_turns(tiny: Path, gate: Gate) -> None:
    """With one place and a short slice, a short turn that comes later is answered in the middle of an endless one."""
    async with running(tiny, parallel=1, slice_seconds=0.001, flash_attention=False) as engine:
        alone = await ask(engine, "endless", max_tokens=1200)
        gate.close(after=600)
        long = asyncio.create_task(ask(engine, "endless", max_tokens=1200))
        await until(engine, lambda stats: stats.running == 1)
        await ask(engine, "short", owner="other", max_tokens=5)
        assert not long.done()
        gate.open()
        answer = await long
    assert answer.finished.usage.completion_tokens == 1200
    assert answer.text[:200] == alone.text[:200]
