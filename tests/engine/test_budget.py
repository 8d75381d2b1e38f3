"""How steps are shared: a token for every stream, or pieces of prompts; counted in tokens, steps and cells."""

import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_server.engine.llama.cost_model import TILE, StepCost, padding, whole
from cfs_server.engine.llama.prompt_budget import ALONE, LONGER, MIN_ALONE, PromptBudget, attended_cells

FULL_REACH = 8
"""Pieces after which the slow start is over, whatever a step may hold here."""


def budget(
    per_token: float, per_attended_cell: float = 0.0, *, streams: float = 0.0, step_tokens: int = 512
) -> PromptBudget:
    """Make a budget of 0.1 s a step that knows what tokens cost, and whose slow start is over."""
    cost = StepCost(per_token=per_token, per_attended_cell=per_attended_cell)
    made = PromptBudget(step_tokens, 0.1, cost, StepCost(fixed=streams))
    made.share({"s": 1, "long": 5000})
    for _ in range(FULL_REACH):
        made.saw_step(TILE, made.cost.seconds(TILE), 0)
    made.saw_step(1, streams)
    return made


def at(depth: int) -> Callable[[object], int]:
    """Say of all turns that they are so far."""
    return lambda _turn: depth


def test_streams_and_prompts_take_turns() -> None:
    """No step holds both, however often it is asked; after a piece of a prompt each stream has a token."""
    pending = {"a": 1, "b": 1, "long": 5000}
    known = budget(0.001)
    for _ in range(3):
        assert known.share(pending) == {"long": 128}
        known.saw_step(128, 0.128, 0)
        assert known.share(pending) == known.share(pending) == {"a": 1, "b": 1}
        known.saw_step(2, 0.001)


def test_what_is_less_than_a_tile_together_is_one_step() -> None:
    """There every token attends to its own cells only, so no prompt pays for the others."""
    assert budget(0.001).share({"a": 1, "b": 1, "short": 50}) == {"a": 1, "b": 1, "short": 50}
    assert budget(0.001).share({"a": 1, "b": 1, "short": 62}) == {"short": 62}


def test_few_tokens_far_into_a_prompt_are_a_step_of_their_own() -> None:
    """Filled up to a tile they cost less than one by one."""
    known = budget(0.0005, 4e-7)
    assert known.share({"a": 1, "rest": 20}, at(100)) == {"a": 1, "rest": 20}
    assert known.share({"a": 1, "rest": 20}, at(5000)) == {"rest": 20}


def test_a_prompt_begins_with_one_tile() -> None:
    """Twice as many in each of its steps: a wrong estimate from before costs streams one tile. Alone it does not."""
    known = budget(1e-6)
    sizes = []
    assert known.share({"a": 1}) == {"a": 1}
    for _ in range(5):
        sizes.append(known.share({"a": 1, "long": 5000})["long"])
        known.saw_step(sizes[-1], 1e-6 * sizes[-1], 0)
        known.saw_step(1, 1e-6)
    assert sizes == [64, 128, 256, 512, 512]
    assert known.share({"long": 5000}) == {"long": 512}


def test_pieces_are_full_tiles_and_as_long_as_the_time_allows() -> None:
    """Also with what streams take of it; without streams a step may take longer."""
    assert budget(0.0005).share({"a": 1, "long": 5000}) == {"long": 192}  # of 200
    assert budget(0.0005, streams=0.03).share({"a": 1, "long": 5000}) == {"long": 128}  # of 140
    assert budget(0.001).share({"long": 5000}) == {"long": whole(100 * ALONE)}
    assert budget(0.0005).share({"a": 1, "long": 200}) == {"long": 200}


def test_pieces_become_smaller_far_into_a_prompt() -> None:
    """A token at the end of a long prompt attends to all of it."""
    known = budget(0.0001, 4e-7)
    sizes = [known.share({"a": 1, "long": 5000}, at(read))["long"] for read in (0, 1000, 2000, 4000, 9000)]
    assert sizes == [512, 192, 128, 64, 64]


def test_prompts_share_equally_and_short_ones_leave_the_rest() -> None:
    """A short prompt is read at once beside a long one."""
    known = budget(0.0002)
    assert known.share({"s": 1, "long": 900, "short": 10}) == {"short": 10, "long": 448}
    assert known.share({"s": 1, "x": 900, "y": 900}) == {"x": 256, "y": 256}


def test_prompts_that_are_too_dear_together_take_turns() -> None:
    """One tile each, one after the other."""
    known, pending = budget(0.002), {"s": 1, "x": 900, "y": 900, "z": 900}
    read = []
    for _ in range(6):
        (turn,) = known.share(pending)
        read.append(turn)
        known.saw_step(64, 0.128, 0)
        known.saw_step(1, 0.0)
    assert {turn: read.count(turn) for turn in read} == {"x": 2, "y": 2, "z": 2}


def test_a_slow_model_still_reads() -> None:
    """Prompts do not starve however much a token costs, and without streams they are read in large pieces."""
    assert budget(5.0).share({"s": 1, "long": 900}) == {"long": TILE}
    assert budget(5.0).share({"long": 900}) == {"long": MIN_ALONE}


def test_where_streams_take_too_long_prompts_take_more_than_a_tile() -> None:
    """Half a second for the streams alone is too long anyway, and a tile at a time would make it so much oftener."""
    dear = budget(0.0005, streams=0.512)
    assert dear.share({"s": 1, "long": 900})["long"] == whole(int(LONGER * 512 / 0.5))


def test_a_prompt_takes_its_tokens_and_the_fixed_part_of_its_steps() -> None:
    """Of 300 tokens a step, where they take 0.4 s: a thousand are three and a third."""
    known = PromptBudget(512, 0.1, StepCost(fixed=0.1, per_token=0.001))
    assert known.seconds(1000) == pytest.approx(1.0 + 0.1 * 1000 / 300, rel=1e-3)


def test_padding_fills_a_tile_where_that_is_quicker() -> None:
    """Where attended cells cost much: not near the beginning, not a single token, not what is a tile already."""
    cost = StepCost(per_token=0.0005, per_attended_cell=4e-7)
    assert padding(16, attended_cells(16, 5000), cost) == 48
    assert padding(16, attended_cells(16, 100), cost) == 0
    assert padding(1, attended_cells(1, 5000), cost) == 0
    assert padding(64, attended_cells(64, 5000), cost) == 0
    assert padding(16, attended_cells(16, 5000), StepCost(per_token=0.0005)) == 0


@pytest.mark.parametrize("streams", [0, 4])
@pytest.mark.parametrize(
    "start",
    [StepCost(), StepCost(10.0, 0.0), StepCost(0.0, 10.0), StepCost(10.0, 1.0), StepCost(1e-9, 1e-9)],
    ids=["nothing", "steps dear", "tokens dear", "all dear", "all cheap"],
)
@pytest.mark.parametrize("first", [None, 10.0], ids=["", "after a stall"])
def test_a_step_comes_to_what_its_time_allows(start: StepCost, first: float | None, streams: int) -> None:
    """Whatever was believed, after 25 pieces: 30 ms and half a one for each token, give or take a tenth and a tile."""
    for seed in range(10):
        machine = Machine(seed)
        learning = PromptBudget(4096, 0.15, replace(start))
        if first is not None:
            learning.saw_step(64, first, 0)
        for _ in range(25):
            machine.step(learning, streams)
        sizes = [machine.step(learning, streams) for _ in range(40)]
        allowed = machine.tokens_in(0.15 - 0.032 if streams else 0.15 * ALONE)
        assert statistics.median(sizes) == pytest.approx(allowed, abs=0.15 * allowed + TILE)
        assert max(sizes) < 2 * allowed + TILE


def test_what_prompts_cost_is_known_after_any_number_of_steps_without_one() -> None:
    """Streams say little of it, and take nothing back."""
    machine = Machine(1)
    learning = PromptBudget(4096, 0.15)
    for _ in range(25):
        machine.step(learning, 4)
    before = replace(learning.cost)
    for _ in range(5000):
        learning.saw_step(4, machine.seconds(4))
    assert learning.cost == before


def test_looks_are_learnt_from_one_long_prompt() -> None:
    """With the figures of a real model: after one prompt, what a piece takes is predicted anywhere in the next."""
    for seed in range(10):
        machine = Machine(seed, per_attended_cell=3.5e-7)
        learning = PromptBudget(512, 0.2)
        errors: list[float] = []
        for round_ in range(3):
            read = 0
            while read < 6000:
                tokens = learning.share({"s": 1, "long": 6000}, at(read)).get("long")
                if tokens is None:
                    learning.saw_step(1, machine.seconds(1))
                    continue
                seen = attended_cells(tokens, read)
                if round_:
                    errors.append(abs(learning.cost.seconds(tokens, seen) / machine.mean(tokens, seen) - 1))
                learning.saw_step(tokens, machine.seconds(tokens, seen), seen)
                read += tokens
        assert statistics.median(errors) < 0.15
        assert statistics.quantiles(errors, n=10)[-1] < 0.5


def test_a_step_that_hung_is_charged_at_most_three_times_what_it_should_cost() -> None:
    """Those who were in it are not to blame for the machine."""
    known = budget(0.001, streams=0.01)
    assert known.credible(100, 60.0, 0) == pytest.approx(0.3)
    assert known.credible(1, 60.0) == pytest.approx(0.03)
    assert known.credible(100, 0.11, 0) == 0.11
    assert PromptBudget(512, 0.1).credible(100, 60.0, 0) == 60.0


class Machine:
    """A step takes 30 ms and half a one for each token, give or take a tenth; one in fifty takes ten times that."""

    def __init__(self, seed: int, per_attended_cell: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._per_attended_cell = per_attended_cell

    def mean(self, tokens: int, seen: float = 0.0) -> float:
        """Say what a step takes without accidents."""
        return 0.03 + 0.0005 * tokens + self._per_attended_cell * seen

    def seconds(self, tokens: int, seen: float = 0.0) -> float:
        """Take the time of a step."""
        accident = 10 if self._random.random() < 0.02 else 1
        return self.mean(tokens, seen) * self._random.lognormvariate(0, 0.1) * accident

    def tokens_in(self, seconds: float) -> float:
        """Say how many tokens take so long."""
        return (seconds - 0.03) / 0.0005

    def step(self, learning: PromptBudget, streams: int) -> int:
        """Compute a piece of an endless prompt, and the streams behind it; returns the tokens of the piece."""
        pending = dict.fromkeys(range(streams), 1) | {-1: 1_000_000}
        while -1 not in (shares := learning.share(pending)):
            learning.saw_step(len(shares), self.seconds(len(shares)))
        tokens = shares[-1]
        learning.saw_step(tokens, self.seconds(tokens), 0)
        return tokens


@given(
    st.dictionaries(st.integers(), st.integers(1, 3000), max_size=64),
    st.floats(0, 10),
    st.floats(0, 1e-3),
    st.integers(0, 50_000),
    st.booleans(),
)
def test_no_share_is_more_than_pending_and_all_fit_into_a_step(
    pending: dict[int, int], cost: float, look: float, depth: int, after: bool
) -> None:
    """Whatever waits: each step computes something, one token of each stream, and no more than needed or possible."""
    known = budget(cost, look)
    if after:
        known.saw_step(64, 1.0, 0)
    shares = known.share(pending, at(depth))
    assert all(0 < count <= pending[turn] for turn, count in shares.items())
    assert all(shares[turn] == pending[turn] for turn in shares if pending[turn] == 1)
    assert sum(shares.values()) <= 512
    assert bool(shares) == bool(pending)


def test_before_the_first_reply_its_tokens_are_taken_for_those_of_a_prompt() -> None:
    """A new engine would else predict that replies cost nothing; later they cost what steps of streams did."""
    known = PromptBudget(512, 0.1, StepCost(fixed=0.1, per_token=0.01))
    assert known.reply_seconds(10) == pytest.approx(0.02)
    known.saw_step(10, 0.05)
    assert known.reply_seconds(10) == pytest.approx(0.005)
