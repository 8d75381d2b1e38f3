"""Architectures of models: what is found out about their state, what follows, and where it is shown (E3)."""

from dataclasses import replace
from pathlib import Path

import pytest

from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import budget_of, load
from cfs_server.engine.llama.model_plan import ModelArchitecture, make_plan

MIB, GIB = 1 << 20, 1 << 30
ATTENTION = ModelArchitecture("attention", parts=True, window=0, cell_bytes=1000)
WINDOWED = ModelArchitecture("sliding window", parts=True, window=64, cell_bytes=1000, window_bytes=800)
HYBRID = ModelArchitecture("hybrid", parts=False, window=0, cell_bytes=500, state_bytes=10_000)
RECURRENT = ModelArchitecture("recurrent", parts=False, window=0, cell_bytes=0, state_bytes=10_000)


@pytest.mark.parametrize(
    ("model", "family", "policy", "window"),
    [
        ("tiny", "attention", "ranges", "none"),
        ("windowed", "sliding window", "ranges", "64 tokens, kept in full"),
        ("recurrent", "recurrent", "snapshots", "none"),
        ("hybrid", "hybrid", "snapshots", "none"),
    ],
)
def test_each_family_is_recognised(
    request: pytest.FixtureRequest, model: str, family: str, policy: str, window: str
) -> None:
    """By what the library says and by trying; a pool of all sequences at full length fits for models this small."""
    path: Path = request.getfixturevalue(model)
    loaded = load(str(path), WorkerOptions(parallel=3), NativeLog(lambda _level, _text: None), extra_buffers=False)
    plan = loaded.plan
    assert (plan.family, plan.policy, plan.window) == (family, policy, window)
    assert plan.pool_tokens == 3 * 2048
    assert loaded.context.partial == (policy == "ranges")
    assert not plan.extra_buffers
    assert f"{family}" in str(plan)
    assert policy in str(plan)


def test_a_window_is_not_kept_in_full_where_a_whole_context_would_not_fit(windowed: Path) -> None:
    """Whole states are kept then, and the line says why; entries of one layer would fit, those of two do not."""
    options = WorkerOptions(parallel=3, pool_bytes=400_000)
    loaded = load(str(windowed), options, NativeLog(lambda _level, _text: None), extra_buffers=False)
    assert loaded.plan.policy == "snapshots"
    assert loaded.plan.window == "64 tokens, only the window is kept: a whole context would not fit"
    assert loaded.plan.pool_tokens >= 2048
    assert not loaded.context.partial


def test_flash_attention_is_told_as_chosen(tiny: Path) -> None:
    """Off when it was not wanted, on when the library could."""
    log = NativeLog(lambda _level, _text: None)
    for wanted in (True, False):
        plan = load(str(tiny), WorkerOptions(parallel=1, flash_attention=wanted), log, extra_buffers=True).plan
        assert (plan.flash_attention, plan.extra_buffers) == (wanted, True)


@pytest.mark.parametrize(
    ("architecture", "budget", "ranges", "full_window", "pool"),
    [
        (ATTENTION, 10**9, True, False, 4 * 8192),
        (ATTENTION, 10**7, True, False, 10_000),
        (ATTENTION, 10**6, True, False, 4096),
        (WINDOWED, 8_192_000, True, True, 8192),
        (WINDOWED, 8_191_999, False, False, 4 * 8192),
        (replace(WINDOWED, parts=False), 10**9, False, False, 4 * 8192),
        (HYBRID, 10**7, False, False, 20_000),
        (RECURRENT, 1, False, False, 4 * 8192),
    ],
)
def test_the_policy(architecture: ModelArchitecture, budget: int, ranges: bool, full_window: bool, pool: int) -> None:
    """Ranges need parts, and a window in full needs room for a whole context; the pool takes what the budget allows."""
    plan = make_plan(architecture, WorkerOptions(parallel=4), 8192, budget)
    assert (plan.ranges, plan.full_window, plan.pool_tokens) == (ranges, full_window, pool)
    assert plan.sequences == (64 if ranges else 5)


@pytest.mark.parametrize(
    ("memory", "weights", "context", "mebibytes"),
    [
        (64 * GIB, 94 * MIB, 180 * MIB, 360),  # two contexts
        (64 * GIB, 6 * MIB, 9 * MIB, 128),  # a small model
        (64 * GIB, 600 * MIB, 4 * GIB, 1024),  # a long context
        (64 * GIB, 5 * GIB, 16 * GIB, 5 * 1024),  # as large as the model
        (8 * GIB, 5 * GIB, 16 * GIB, 2 * 1024),  # a quarter of the memory
    ],
)
def test_the_pool_suits_the_machine_and_the_model(memory: int, weights: int, context: int, mebibytes: int) -> None:
    assert budget_of(WorkerOptions(), memory, weights, context) == mebibytes * MIB
    assert budget_of(WorkerOptions(pool_bytes=7 * GIB), memory, weights, context) == 7 * GIB


def test_sizes_that_are_given_are_kept() -> None:
    """A context no longer than the model was trained for, a pool as large as it was asked for."""
    plan = make_plan(ATTENTION, WorkerOptions(context_tokens=10**6, pool_tokens=777), 8192, 10**9)
    assert (plan.context_tokens, plan.pool_tokens, plan.pool_bytes) == (8192, 777, 777_000)


async def test_the_engine_says_what_it_chose(windowed: Path) -> None:
    """To the user who starts it, in the fields that `/readyz` and `/metrics` show."""
    engine = LlamaEngine(str(windowed), WorkerOptions(parallel=2, threads=1))
    try:
        plan = (await engine.start()).engine
    finally:
        await engine.stop()
    assert plan is not None
    assert (plan.family, plan.parallel, plan.threads, plan.pool_tokens) == ("sliding window", 2, 1, 4096)
    assert plan.pool_bytes > 100 * plan.pool_tokens
