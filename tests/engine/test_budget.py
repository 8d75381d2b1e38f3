"""How a step is shared: every stream its token, the prompts what is left, in equal parts."""

from hypothesis import given
from hypothesis import strategies as st

from cfs_server.engine.llama.budget import ALONE, MIN_PROMPT_TOKENS, PromptBudget


def budget(seconds_per_token: float) -> PromptBudget:
    """Make a budget of 512 tokens and 0.1 s a step that knows what a token costs."""
    made = PromptBudget(512, 0.1)
    made.seconds_per_token = seconds_per_token
    return made


def test_streams_always_get_their_token() -> None:
    """Prompts are limited by time while others stream, and by more of it when nobody does."""
    assert budget(0.001).share({"a": 1, "b": 1, "long": 5000}) == {"a": 1, "b": 1, "long": 100}
    assert budget(0.001).share({"long": 5000}) == {"long": 100 * ALONE}
    assert budget(1e-9).share({"a": 1, "long": 5000}) == {"a": 1, "long": 511}


def test_prompts_share_equally_and_short_ones_leave_the_rest() -> None:
    """A short prompt is read at once beside a long one."""
    assert budget(0.001).share({"s": 1, "long": 900, "short": 10}) == {"s": 1, "short": 10, "long": 90}
    assert budget(0.001).share({"s": 1, "x": 900, "y": 900}) == {"s": 1, "x": 50, "y": 50}


def test_a_slow_model_still_reads() -> None:
    """Prompts do not starve however much a token costs."""
    assert budget(5.0).share({"s": 1, "long": 900}) == {"s": 1, "long": MIN_PROMPT_TOKENS}


def test_the_cost_is_learnt() -> None:
    """Small steps say nothing about the cost of a prompt; large ones do."""
    learning = PromptBudget(512, 0.1)
    learning.saw_step(1, 1, 0.1)
    assert learning.seconds_per_token == 0
    learning.saw_step(0, 100, 0.1)
    assert learning.seconds_per_token == 0.001
    learning.saw_step(16, 116, 1.16)
    assert 0.001 < learning.seconds_per_token < 0.01


@given(st.dictionaries(st.integers(), st.integers(1, 3000), max_size=64), st.floats(0, 10))
def test_no_share_is_more_than_pending_and_all_fit_into_a_step(pending: dict[int, int], cost: float) -> None:
    """Whatever waits: streams one token each, nobody more than it needs, no more than a step takes."""
    shares = budget(cost).share(pending)
    assert all(0 < count <= pending[turn] for turn, count in shares.items())
    assert all(shares[turn] == 1 for turn, count in pending.items() if count == 1)
    assert sum(shares.values()) <= 512
    assert bool(shares) == bool(pending)
