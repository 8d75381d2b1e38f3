"""Predicted seconds: nothing while there is a place, and what those before would take when there is none."""

import asyncio
from array import array
from pathlib import Path

import pytest

from cfs_server.engine.llama.cost_model import StepCost
from cfs_server.engine.llama.prompt_budget import PromptBudget
from cfs_server.engine.worker.generation import Generation
from cfs_server.engine.worker.sampling import Sampler
from cfs_server.engine.worker.text import TextStream
from cfs_server.engine.worker.wait_queue import Forecast
from tests.engine.support import ask, running, until


class NoSampler(Sampler):
    """A turn that is never sampled."""

    def __init__(self) -> None:
        """Need no vocabulary."""


def turn(prompt: int, most: int, owner: str = "") -> Generation:
    """Make a turn that was not admitted."""
    share = (owner, "interactive", "")
    return Generation("t", "k", array("i", range(prompt)), prompt, most, NoSampler(), TextStream(), share=share)


@pytest.fixture
def forecast() -> Forecast:
    """A token of a prompt costs a millisecond, one of a reply ten; replies are of 100 tokens."""
    made = Forecast(PromptBudget(512, 0.1, StepCost(per_token=0.001), StepCost(fixed=0.009, per_token=0.001)))
    for _ in range(200):
        made.saw_reply(100)
    return made


def test_a_free_place_costs_nothing(forecast: Forecast) -> None:
    """However much those compute that have the others."""
    assert forecast.backlog([turn(1000, 1000)], [], parallel=2).wait("me", "interactive") == 0


def test_who_waits_is_counted_with_prompt_and_reply(forecast: Forecast) -> None:
    """A thousand tokens of prompt and a hundred of reply are two seconds; a short limit is believed."""
    ahead = [turn(1000, 500), turn(1000, 10)]
    backlog = forecast.backlog([turn(0, 500)], ahead, parallel=1)
    assert backlog.wait("", "interactive") == pytest.approx(1.0 + 2.0 + 1.1, rel=0.02)


def test_a_prompt_that_others_compute_is_not_counted_again(forecast: Forecast) -> None:
    """Fifty agents with one prompt of 4,000 tokens wait for that once, and for fifty replies."""
    crowd = [turn(4000, 10) for _ in range(50)]
    for one in crowd[1:]:
        one.spared = 3990
    backlog = forecast.backlog([turn(0, 10)], crowd, parallel=1)
    assert backlog.wait("", "interactive") == pytest.approx(4.0 + 49 * 0.01 + 51 * 0.1, rel=0.02)


def test_another_owner_waits_for_the_place_and_for_one_turn_of_the_crowd(forecast: Forecast) -> None:
    """Each of the crowd takes a second; the newcomer is next but one, the crowd's next turn is last."""
    crowd = [turn(0, 500, "crowd") for _ in range(50)]
    backlog = forecast.backlog([turn(0, 500, "crowd")], crowd, parallel=1)
    assert backlog.wait("newcomer", "interactive") == pytest.approx(2.0, rel=0.02)
    assert backlog.wait("crowd", "interactive") == pytest.approx(51.0, rel=0.02)


async def test_the_engine_predicts(tiny: Path) -> None:
    """With one place and forty long turns of an owner it is much for them and little for others; then it is none."""
    async with running(tiny, parallel=1) as engine:
        await ask(engine, "learn", max_tokens=50)
        assert engine.predicted_wait("crowd", "interactive") == 0
        turns = [asyncio.create_task(ask(engine, f"{number}", max_tokens=1500, owner="crowd")) for number in range(40)]
        await until(engine, lambda _: engine.predicted_wait("crowd", "interactive") > 0.05)
        assert engine.predicted_wait("newcomer", "interactive") < engine.predicted_wait("crowd", "interactive") / 2
        for one in turns:
            one.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        await until(engine, lambda stats: not stats.running + stats.waiting)
        await ask(engine, "and now?", max_tokens=1)
        assert engine.predicted_wait("crowd", "interactive") == 0
