"""Steps of the real scheduler are full tiles of tokens: what is missing is filled up, and nothing of that is left."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.llama.cost_model import ONE_BY_ONE, TILE, StepCost, counted, padding
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from cfs_server.engine.llama.prompt_budget import attended_cells
from tests.engine.test_scheduler import SchedulerHarness


def harness(tiny: Path, *, cells_cost: bool, pool_tokens: int = 1024) -> SchedulerHarness:
    """Make a scheduler that knows what steps cost; it unlearns it, so it is told again before each."""
    options = WorkerOptions(parallel=4, pool_tokens=pool_tokens, threads=1)
    made = SchedulerHarness(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))
    know(made, cells_cost=cells_cost)
    return made


def know(made: SchedulerHarness, *, cells_cost: bool) -> None:
    """Say what a token and a look cost."""
    cost = made.scheduler._runner.budget.cost
    cost.fixed, cost.per_token, cost.per_attended_cell = 0.0, 1e-6, 1e-6 if cells_cost else 0.0


def extended(made: SchedulerHarness, prompt: int, more: int, *, cells_cost: bool) -> None:
    """Run a turn, and then begin one whose prompt is `more` tokens longer: its step is one of just those."""
    made.put("first", prompt=prompt, tokens=1)
    made.run("first")
    know(made, cells_cost=cells_cost)
    made.put("second", prompt=prompt + more, tokens=4)
    made.scheduler.take_work()
    made.scheduler.step()


@pytest.mark.parametrize(("more", "size"), [(20, TILE), (63, TILE), (64, 64), (70, 70)])
def test_few_tokens_behind_many_are_filled_up_to_a_tile(tiny: Path, more: int, size: int) -> None:
    """They count as one piece of the prompt; the others are neither counted nor kept."""
    made = harness(tiny, cells_cost=True)
    extended(made, 300, more, cells_cost=True)
    steps = made.scheduler._runner
    assert steps._batch.size == size
    assert steps.counters(0).prompt_tokens_evaluated == 300 + more
    assert made.scheduler._cache.pool.cells_used == 300 + more
    assert made.scheduler.check_integrity() == []
    made.run("second")


def test_looks_are_counted_as_they_cost() -> None:
    """Outside of a tile each is dearer, and inside of one those of the tokens that fill it up are looks, too."""
    assert counted(60, 60, 1000.0) == ONE_BY_ONE * 1000
    assert counted(64, 64, 1000.0) == counted(200, 200, 1000.0) == 1000
    assert counted(16, TILE, 1000.0) == 4000


def test_a_nearly_full_tile_is_filled_up_after_the_first_prompt() -> None:
    """A look costs something before any long prompt has told how much."""
    cost = StepCost()
    cost.saw(TILE, 0.3, attended_cells(TILE, 0))
    assert padding(60, attended_cells(60, TILE), cost) == TILE - 60
    assert padding(20, attended_cells(20, TILE), cost) == 0


def test_what_fills_a_tile_changes_no_logits(tiny: Path) -> None:
    """But for the rounding of another order of additions."""
    logits = []
    for cells_cost in (False, True):
        made = harness(tiny, cells_cost=cells_cost)
        extended(made, 300, 20, cells_cost=cells_cost)
        assert made.scheduler._runner._batch.size == (TILE if cells_cost else 20)
        logits.append(made.model.context.outputs(1, made.model.vocabulary.size)[0].copy())
        made.run("second")
    assert np.allclose(logits[0], logits[1], atol=1e-2)


def test_without_room_or_tiles_nothing_is_filled_up(tiny: Path) -> None:
    """The pool has no cells to spare, or attention is not computed in tiles."""
    made = harness(tiny, cells_cost=True, pool_tokens=512)
    extended(made, 450, 20, cells_cost=True)
    assert made.scheduler._runner._batch.size == 20
    made.run("second")
    plain = harness(tiny, cells_cost=True)
    plain.model.context.tiled = False
    extended(plain, 300, 20, cells_cost=True)
    assert plain.scheduler._runner._batch.size == 20
    plain.run("second")


def test_a_stream_speaks_between_the_pieces_of_a_prompt(tiny: Path) -> None:
    """Each step is one token of the stream, or full tiles of the prompt."""
    made = harness(tiny, cells_cost=False)
    made.put("stream", prompt=10, tokens=200)
    while not made.text("stream"):
        made.scheduler.take_work()
        made.scheduler.step()
    made.put("long", prompt=600, tokens=1, first=30)
    sizes: list[int] = []
    while "long" not in {end.id for step in made.said for end in getattr(step, "ended", ())}:
        made.scheduler.take_work()
        made.scheduler.step()
        sizes.append(made.scheduler._runner._batch.size)
    pieces = [size for size in sizes if size > 1]
    assert sum(pieces) == 600
    assert all(size % TILE == 0 for size in pieces[:-1])
    assert not any(one > 1 and other > 1 for one, other in pairwise(sizes))
    made.run("stream")
