"""Predicted seconds: nothing while there is a place, and what those before would take when there is none."""

import asyncio
from array import array
from pathlib import Path

import pytest

from cfs_server.engine.llama.budget import PromptBudget
from cfs_server.engine.llama.costs import StepCost
from cfs_server.engine.llama.forecast import Forecast
from cfs_server.engine.llama.sampling import Sampler
from cfs_server.engine.llama.sequences import Generation
from cfs_server.engine.llama.text import TextStream
from tests.engine.support import ask, running, until


class NoSampler(Sampler):
    """A turn that is never sampled."""

    def __init__(self) -> None:
        """Need no vocabulary."""


def turn(prompt: int, most: int) -> Generation:
    """Make a turn that was not admitted."""
    return Generation("t", "k", array("i", range(prompt)), prompt, most, NoSampler(), TextStream())


@pytest.fixture
def forecast() -> Forecast:
    """A token of a prompt costs a millisecond, one of a reply ten; replies are of 100 tokens."""
    made = Forecast(PromptBudget(512, 0.1, StepCost(fixed=0.009, per_token=0.001)))
    for _ in range(200):
        made.saw_reply(100)
    return made


def test_a_free_place_costs_nothing(forecast: Forecast) -> None:
    """However much those compute that have the others."""
    assert forecast.wait([turn(1000, 1000)], [], parallel=2) == 0


def test_who_waits_is_counted_with_prompt_and_reply(forecast: Forecast) -> None:
    """A thousand tokens of prompt and a hundred of reply are two seconds; a short limit is believed."""
    ahead = [turn(1000, 500), turn(1000, 10)]
    assert forecast.wait([turn(0, 500)], ahead, parallel=1) == pytest.approx(1.0 + 2.0 + 1.1, rel=0.02)


async def test_the_engine_predicts(tiny: Path) -> None:
    """With one place and forty turns it is seconds; when all are done it is none."""
    async with running(tiny, parallel=1) as engine:
        await ask(engine, "learn", max_tokens=50)
        assert engine.predicted_wait == 0
        turns = [asyncio.create_task(ask(engine, f"{number}", max_tokens=60)) for number in range(40)]
        await until(engine, lambda _: engine.predicted_wait > 0.05)
        await asyncio.gather(*turns)
        assert engine.predicted_wait == 0
