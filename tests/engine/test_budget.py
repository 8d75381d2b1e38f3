"""How a step is shared: every stream its token, the prompts what is left, in equal parts."""

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_server.engine.llama.budget import ALONE, LONGER, MIN_ALONE, MIN_PROMPT_TOKENS, PromptBudget
from cfs_server.engine.llama.costs import StepCost


def budget(seconds_per_token: float) -> PromptBudget:
    """Make a budget of 512 tokens and 0.1 s a step that knows what a token costs."""
    return PromptBudget(512, 0.1, StepCost(per_token=seconds_per_token))


def test_streams_always_get_their_token() -> None:
    """Prompts are limited by time while others stream, and by more of it when nobody does."""
    assert budget(0.001).share({"a": 1, "b": 1, "long": 5000}) == {"a": 1, "b": 1, "long": 98}
    assert budget(0.001).share({"long": 5000}) == {"long": 100 * ALONE}
    assert budget(1e-9).share({"a": 1, "long": 5000}) == {"a": 1, "long": 511}


def test_prompts_share_equally_and_short_ones_leave_the_rest() -> None:
    """A short prompt is read at once beside a long one."""
    streams = {"s": 1, "t": 1}
    assert budget(0.001).share(streams | {"long": 900, "short": 10}) == streams | {"short": 10, "long": 88}
    assert budget(0.001).share(streams | {"x": 900, "y": 900}) == streams | {"x": 49, "y": 49}


def test_a_slow_model_still_reads() -> None:
    """Prompts do not starve however much a token costs, and where nobody streams they are read in large pieces."""
    assert budget(5.0).share({"s": 1, "long": 900}) == {"s": 1, "long": MIN_PROMPT_TOKENS}
    assert budget(5.0).share({"long": 900}) == {"long": MIN_ALONE}


def test_a_step_that_is_too_long_without_prompts_takes_more_than_the_least_of_them() -> None:
    """Half a second a step is too long anyway, and 32 tokens at a time would make it so much oftener."""
    dear = PromptBudget(512, 0.1, StepCost(fixed=0.5, per_token=0.001))
    assert dear.share({"s": 1, "long": 900})["long"] == pytest.approx(LONGER * 500, abs=1)


def test_a_prompt_takes_its_tokens_and_the_fixed_part_of_its_steps() -> None:
    """Of 300 tokens a step, where they take 0.4 s: a thousand are three and a third."""
    known = PromptBudget(512, 0.1, StepCost(fixed=0.1, per_token=0.001))
    assert known.seconds(1000) == pytest.approx(1.0 + 0.1 * 1000 / 300)


@pytest.mark.parametrize("streams", [0, 4])
@pytest.mark.parametrize(
    "start",
    [StepCost(), StepCost(10.0, 0.0), StepCost(0.0, 10.0), StepCost(10.0, 1.0), StepCost(1e-9, 1e-9)],
    ids=["nothing", "steps dear", "tokens dear", "all dear", "all cheap"],
)
@pytest.mark.parametrize("first", [None, 10.0], ids=["", "after a stall"])
def test_a_step_comes_to_what_its_time_allows(start: StepCost, first: float | None, streams: int) -> None:
    """Whatever was believed, after 25 steps: a step of 30 ms, half a one for each token, give or take a tenth."""
    for seed in range(10):
        machine = Machine(seed)
        learning = PromptBudget(4096, 0.15, replace(start))
        if first is not None:
            learning.saw_step(64, first)
        for _ in range(25):
            machine.step(learning, streams)
        sizes = [machine.step(learning, streams) for _ in range(40)]
        allowed = machine.tokens_in(0.15 if streams else 0.15 * ALONE)
        assert statistics.median(sizes) == pytest.approx(allowed, rel=0.15)
        assert max(sizes) < 2 * allowed


def test_what_prompts_cost_is_known_after_any_number_of_steps_without_one() -> None:
    """Streams say little of it, and take nothing back."""
    machine = Machine(1)
    learning = PromptBudget(4096, 0.15)
    for _ in range(25):
        machine.step(learning, 4)
    for _ in range(5000):
        learning.saw_step(4, machine.seconds(4))
    assert learning.share({"s": 1, "long": 10_000})["long"] == pytest.approx(machine.tokens_in(0.15), rel=0.3)


class Machine:
    """A step takes 30 ms and half a one for each token, give or take a tenth; one in fifty takes ten times that."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def seconds(self, tokens: int) -> float:
        """Take the time of a step."""
        accident = 10 if self._random.random() < 0.02 else 1
        return (0.03 + 0.0005 * tokens) * self._random.lognormvariate(0, 0.1) * accident

    def tokens_in(self, seconds: float) -> float:
        """Say how many tokens take so long."""
        return (seconds - 0.03) / 0.0005

    def step(self, learning: PromptBudget, streams: int) -> int:
        """Compute a step of an endless prompt beside streams; returns its tokens."""
        tokens = sum(learning.share(dict.fromkeys(range(streams), 1) | {-1: 1_000_000}).values())
        learning.saw_step(tokens, self.seconds(tokens))
        return tokens


@given(st.dictionaries(st.integers(), st.integers(1, 3000), max_size=64), st.floats(0, 10))
def test_no_share_is_more_than_pending_and_all_fit_into_a_step(pending: dict[int, int], cost: float) -> None:
    """Whatever waits: streams one token each, nobody more than it needs, no more than a step takes."""
    shares = budget(cost).share(pending)
    assert all(0 < count <= pending[turn] for turn, count in shares.items())
    assert all(shares[turn] == 1 for turn, count in pending.items() if count == 1)
    assert sum(shares.values()) <= 512
    assert bool(shares) == bool(pending)
