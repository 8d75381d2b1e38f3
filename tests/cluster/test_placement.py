"""Where sessions belong: the slot of a name, the plan of slots, what one replica does, and fleets that fail."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from cfs_server.cluster.directory import LEASE_SECONDS
from cfs_server.domain.placement import (
    OPENINGS,
    SLOTS,
    Moves,
    ReplicaView,
    SlotView,
    assign,
    moves_of,
    new_key,
    slot_in,
    slot_of,
)
from fleet_ownership import Fleet, Rules, Why

NAMES = st.sets(st.text("abcdef0123456789-", min_size=1, max_size=8), min_size=1, max_size=12)
COUNTS = st.integers(1, 64)


# -- the slot of a name -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        ".chat1.swp",
        ".chat1.swx",
        ".#chat1",
        "._chat1",
        "#chat1#",
        "chat1~",
        "chat1.partial",
        "chat1.1f0a9c2e.partial",
        ".chat1.k3Xz9Q",
        "chat1/coder",
        "chat1/coder/tester",
        ".chat1.swp/x",
    ],
)
def test_what_belongs_to_a_session_is_in_its_slot(name: str) -> None:
    """Sub-sessions, and temporary files of editors and copying programs."""
    assert slot_of(name, 1 << 32) == slot_of("chat1", 1 << 32)


@pytest.mark.parametrize("name", ["chat2", "chat1.md", "chat1.swp", ".chat1.k3Xz", "partial", ".swp", "~", "##", "._"])
def test_what_only_looks_like_it_is_elsewhere(name: str) -> None:
    """A name that contains no other one is taken as it is."""
    assert slot_of(name, 1 << 32) != slot_of("chat1", 1 << 32)


@pytest.mark.parametrize(("name", "slot"), [("chat1", 3), ("main", 15), ("会话", 13), ("a b", 8)])
def test_the_slot_of_a_name_never_changes(name: str, slot: int) -> None:
    """Stores exist in which sessions were placed by this hash."""
    assert slot_of(name, SLOTS) == slot


@given(st.text(min_size=1, max_size=40), COUNTS)
def test_every_name_has_a_slot(name: str, slots: int) -> None:
    """Any text, lone surrogates included."""
    assert 0 <= slot_of(name, slots) < slots


def test_names_are_spread_evenly() -> None:
    """100,000 numbered names over 64 slots: none is five standard deviations from the mean."""
    counts = Counter(slot_of(f"user-{number}", 64) for number in range(100_000))
    assert len(counts) == 64
    assert all(abs(count - 100_000 / 64) < 5 * (100_000 / 64) ** 0.5 for count in counts.values())


@given(st.integers(0, 0xFFFF))
def test_a_key_says_its_slot(slot: int) -> None:
    """A session keeps its slot under any name, because its key contains it."""
    key = new_key(slot)
    assert slot_in(key, 0x10000) == slot
    assert len(key) == 32
    assert new_key(slot) != key


# -- the plan ---------------------------------------------------------------------------------------------------------


@given(COUNTS, NAMES, st.randoms(use_true_random=False))
def test_a_plan_depends_on_the_set_of_replicas(slots: int, names: set[str], order: random.Random) -> None:
    """Not on their order, and not on repetitions."""
    shuffled = [*names, *names]
    order.shuffle(shuffled)
    assert assign(slots, shuffled) == assign(slots, sorted(names))


@given(COUNTS, NAMES, st.data())
def test_all_replicas_get_equally_many_slots(slots: int, names: set[str], data: st.DataObject) -> None:
    """Or one more, whoever had them before."""
    owners = data.draw(st.lists(st.sampled_from([None, "gone", *sorted(names)]), min_size=slots, max_size=slots))
    counts = Counter(assign(slots, names, owners))
    assert set(counts) <= names
    assert {counts[name] for name in names} <= {slots // len(names), -(-slots // len(names))}


def test_without_replicas_there_is_no_plan() -> None:
    """Nor without slots."""
    assert assign(16, []) == ()
    assert assign(0, ["a"]) == ()


def moved(old: Sequence[str | None], new: Sequence[str | None]) -> int:
    """Count the slots with another owner."""
    return sum(one != other for one, other in zip(old, new, strict=True))


@given(COUNTS, NAMES, st.data())
def test_a_join_moves_the_part_of_the_new_one(slots: int, names: set[str], data: st.DataObject) -> None:
    """Only it gets slots, and no more than it must get for an even share."""
    new = data.draw(st.text("xyz", min_size=1, max_size=3))
    old = assign(slots, names)
    plan = assign(slots, {*names, new}, old)
    assert moved(old, plan) == slots // (len(names) + 1)
    assert {name for name, before in zip(plan, old, strict=True) if name != before} <= {new}


@given(COUNTS, NAMES.filter(lambda names: len(names) > 1), st.data())
def test_an_end_moves_the_slots_of_the_one_that_ended(slots: int, names: set[str], data: st.DataObject) -> None:
    """All others keep theirs."""
    gone = data.draw(st.sampled_from(sorted(names)))
    old = assign(slots, names)
    plan = assign(slots, names - {gone}, old)
    assert moved(old, plan) == old.count(gone)


@given(COUNTS, NAMES, st.data())
def test_a_plan_that_is_carried_out_in_part_stays_the_same(slots: int, names: set[str], data: st.DataObject) -> None:
    """Slots are released, then claimed, in any order: every view on the way gives the same plan."""
    owners = data.draw(st.lists(st.sampled_from([None, "gone", *sorted(names)]), min_size=slots, max_size=slots))
    plan = assign(slots, names, owners)
    for slot in data.draw(st.permutations(range(slots))):
        if owners[slot] != plan[slot]:
            owners[slot] = None if owners[slot] is not None and data.draw(st.booleans()) else plan[slot]
            assert assign(slots, names, owners) == plan


# -- what one replica does --------------------------------------------------------------------------------------------


def there(*names: str, leaving: str = "", dead: str = "") -> dict[str, ReplicaView]:
    """Return the view of replicas."""
    return {name: ReplicaView(name, f"http://{name}", name != dead, name == leaving) for name in names}


def owned(owners: Sequence[str | None], dead: str = "") -> list[SlotView]:
    """Return the view of slots."""
    return [SlotView(slot, 1, owner, owner not in (None, dead)) for slot, owner in enumerate(owners)]


@given(COUNTS, NAMES, st.data())
def test_each_free_slot_is_claimed_once(slots: int, names: set[str], data: st.DataObject) -> None:
    """Replicas with the same view claim each slot without an owner, and no two of them the same one."""
    owners = data.draw(st.lists(st.sampled_from([None, *sorted(names)]), min_size=slots, max_size=slots))
    views, replicas = owned(owners), there(*names)
    moves = {name: moves_of(name, views, replicas, room=slots) for name in names}
    claims = [slot for each in moves.values() for slot in each.claim]
    assert sorted(claims) == [slot for slot, owner in enumerate(owners) if owner is None]
    for name, each in moves.items():
        assert all(owners[slot] == name for slot in each.release)


@given(COUNTS, NAMES, st.data())
def test_moves_lead_to_the_plan(slots: int, names: set[str], data: st.DataObject) -> None:
    """When every replica has released and claimed as the policy says, there is nothing left to do."""
    owners: list[str | None] = data.draw(
        st.lists(st.sampled_from([None, *sorted(names)]), min_size=slots, max_size=slots)
    )
    replicas = there(*names)
    while todo := {name: each for name in names if (each := moves_of(name, owned(owners), replicas)) != Moves()}:
        name = data.draw(st.sampled_from(sorted(todo)))
        for slot in todo[name].release:
            owners[slot] = None
        for slot in todo[name].claim:
            owners[slot] = name
    assert tuple(owners) == assign(slots, names, owners)


def test_one_that_leaves_hands_over_everything() -> None:
    """It claims nothing; the others claim nothing that it still has, and then all of it."""
    replicas = there("a", "b", "c", leaving="a")
    owners: list[str | None] = ["a", "a", "b", "c", None, "a"]
    assert moves_of("a", owned(owners), replicas, room=6) == Moves((), (0, 1, 5))
    others = [moves_of(name, owned(owners), replicas, room=6) for name in "bc"]
    assert [slot for each in others for slot in each.claim] == [4]
    free = owned([None if owner == "a" else owner for owner in owners])
    others = [moves_of(name, free, replicas, room=6) for name in "bc"]
    assert sorted(slot for each in others for slot in each.claim) == [0, 1, 4, 5]
    assert all(not each.release for each in others)


def test_one_that_the_database_does_not_show_alive_claims_nothing() -> None:
    """Nor one that it does not show at all."""
    assert moves_of("a", owned(["a", None]), there("a", "b", dead="a")) == Moves((), (0,))
    assert moves_of("x", owned(["a", None]), there("a", "b")) == Moves()


def test_slots_of_a_dead_replica_are_shared_by_the_others() -> None:
    """Each claims those that the plan gives it."""
    views = owned(["a", "a", "b", "b", "c", "c"], dead="a")
    replicas = there("a", "b", "c", dead="a")
    assert sorted(moves_of("b", views, replicas).claim + moves_of("c", views, replicas).claim) == [0, 1]
    assert len(moves_of("b", views, replicas).claim) == 1


def test_late_slots_are_claimed_by_a_few_others_first() -> None:
    """One more replica for each time that passes, and in the end all of them; never a replica that is not there."""
    names = [f"r{number}" for number in range(50)]
    views = owned([None, *names[1:]])
    planned = assign(50, names, [view.owner for view in views])[0]
    claims = [
        {name for name in names if 0 in moves_of(name, views, there(*names), {0: times}).claim} for times in range(51)
    ]
    assert claims[0] == {planned}
    assert all(len(each - {planned}) in (times - 1, times) for times, each in enumerate(claims) if times)
    assert all(claims[times] <= claims[times + 1] for times in range(50))
    assert claims[50] == set(names)


def test_a_replica_opens_a_few_slots_at_a_time() -> None:
    """The first of many that start leaves the rest to those that come."""
    views = owned([None] * 256)
    assert len(moves_of("a", views, there("a")).claim) == OPENINGS
    assert moves_of("a", views, there("a"), room=3).claim == (0, 1, 2)
    assert moves_of("a", views, there("a"), room=-1).claim == ()


# -- fleets -----------------------------------------------------------------------------------------------------------


def crash_and_return(fleet: Fleet, name: str, _: float) -> None:
    """Kill a replica and start it again at once, under the same name."""
    fleet.crash(name)
    fleet.start([name])


FAULTS: dict[str, Callable[[Fleet, str, float], None]] = {
    "crash": lambda fleet, name, _: fleet.crash(name),
    "crash and return": crash_and_return,
    "freeze": lambda fleet, name, seconds: fleet.freeze(name, seconds),
    "cut": lambda fleet, name, seconds: fleet.cut(name, seconds),
    "leave": lambda fleet, name, _: fleet.leave(name),
    "database": lambda fleet, _, seconds: fleet.restart_database(seconds),
    "join": lambda fleet, name, _: fleet.start([f"{name}+"]) if f"{name}+" not in fleet.replicas else None,
}
STEPS = st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(0, 4), st.floats(0.1, 8.0), st.floats(0.0, 5.0))


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])  # to shrink takes minutes
@example(0, [("cut", 2, 2.6, 3.4), ("leave", 2, 0.1, 0.0)])  # it has lost its slots, and does not know it yet
@given(st.integers(0, 1000), st.lists(STEPS, max_size=8))
def test_slots_have_one_owner_whatever_fails(seed: int, steps: list[tuple[str, int, float, float]]) -> None:
    """Five replicas and 16 slots: no epoch has two owners, no slot is left, and none moves back and forth.

    An owner that has lost its locks with its connection may answer beside the next one, until its lease ends.
    """
    fleet = Fleet(16, seed, Rules(by_beat=True, from_memory="never", settling=True), sessions=1000, busy=0.3)
    fleet.start(f"r{number}" for number in range(5))
    fleet.settle()
    for what, number, seconds, pause in steps:
        name = f"r{number}"
        if name in fleet.replicas:
            FAULTS[what](fleet, name, seconds)
        fleet.run(pause)
        assert fleet.check() == []
    fleet.run(60.0)
    fleet.settle()
    if not fleet.replicas:
        return
    assert fleet.is_settled()
    overlaps = [length for length, _ in fleet.ledger.overlaps if length > 0]
    assert max(overlaps, default=0.0) < LEASE_SECONDS
    assert not overlaps or "database" in {what for what, *_ in steps}
    fleet.ledger.clear()
    fleet.run(30.0)
    assert fleet.ledger.moves == {}


def fleet_of(rules: Rules | None = None, replicas: int = 5, slots: int = 16) -> Fleet:
    """Return a fleet whose slots have owners."""
    fleet = Fleet(slots, rules=rules or Rules())
    fleet.start(f"r{number}" for number in range(replicas))
    fleet.settle()
    fleet.run(5.0)
    assert fleet.is_settled()
    fleet.ledger.clear()
    return fleet


def test_a_crash_moves_only_what_the_dead_one_had() -> None:
    """The database knows at once, because the connections of the process end."""
    fleet = fleet_of()
    slots = fleet.owned()["r2"]
    fleet.crash("r2")
    fleet.settle()
    assert fleet.ledger.moves == {Why.DEAD: slots}
    assert len(fleet.ledger.gaps) == slots
    assert max(fleet.ledger.gaps) < 0.5


def test_a_short_pause_moves_nothing() -> None:
    """Neither of a process, nor of the network, nor of the database."""
    fleet = fleet_of(Rules())
    fleet.freeze("r1", 2.0)
    fleet.run(4.0)
    fleet.cut("r2", 2.0)
    fleet.run(4.0)
    fleet.restart_database(1.0)
    fleet.run(30.0)
    assert fleet.ledger.moves == {}
    assert fleet.ledger.overlaps == []


def test_an_owner_that_is_cut_off_answers_beside_the_next_one_unless_its_lease_ends_its_answers() -> None:
    """What a rule costs: with the answers from memory there are two owners until the network is back."""
    for rule in ("always", "outage", "never"):
        fleet = fleet_of(Rules(by_beat=True, from_memory=rule))
        fleet.cut("r3", 20.0)
        fleet.run(30.0)
        seconds = [length for length, _ in fleet.ledger.overlaps]
        assert (min(seconds, default=0.0) > 15.0) == (rule == "always")
        assert fleet.ledger.moves[Why.EXPIRED] >= 1


def test_a_lease_that_counts_from_the_last_look_ends_too_late() -> None:
    """Others count from the last heartbeat, which is up to 0.6 seconds older."""
    for by_beat in (False, True):
        longest = 0.0
        for number in range(5):
            fleet = fleet_of(Rules(by_beat=by_beat, from_memory="never"))
            fleet.run(0.11 * number)
            fleet.cut("r3", 20.0)
            fleet.run(30.0)
            longest = max([longest, *(length for length, _ in fleet.ledger.overlaps)])
        assert (longest > 0.0) != by_beat
        assert longest < 0.6


def test_slots_stay_where_they_are_when_the_database_was_away() -> None:
    """After an outage longer than the lease no heartbeat is fresh: whoever is back first must not take everything."""
    moves = {}
    for settling in (False, True):
        fleet = fleet_of(Rules(settling=settling))
        fleet.restart_database(10.0)
        fleet.run(60.0)
        assert fleet.ledger.unowned() == []
        moves[settling] = fleet.ledger.moves[Why.UNJUSTIFIED]
    assert moves[False] > 0
    assert moves[True] == 0


def test_a_run_is_repeated_by_its_seed() -> None:
    """The same events in the same order; another seed gives others."""

    def run(seed: int) -> tuple[list[float], int]:
        fleet = Fleet(16, seed, sessions=1000, busy=0.5)
        fleet.start(f"r{number}" for number in range(5))
        fleet.settle()
        fleet.freeze("r0", 5.0)
        fleet.leave("r1")
        fleet.run(60.0)
        return fleet.ledger.gaps, fleet.database.statements.total()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_the_check_finds_two_owners() -> None:
    """Two processes that serve a slot in one epoch are a violation."""
    fleet = fleet_of()
    owner = str(fleet.database.rows[3].owner)
    other = next(name for name in fleet.replicas if name != owner)
    fleet.replicas[other].hosted[3] = replace(fleet.replicas[owner].hosted[3])
    epoch = fleet.database.rows[3].epoch
    assert fleet.check() == [f"slot 3 is served in epoch {epoch} by {sorted([owner, other])}"]
