"""The type of keys and values: sizes follow it, state of another type is never used, and what cannot be is refused."""

from pathlib import Path
from typing import Any

import pytest

import make_random_gguf
from cfs_server.engine.contract.interface import KvType, ModelInfo, ModelLoadError
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.engine.kvcache.state_folder import NAME
from tests.engine.support import ask, running, until

SHARES: dict[KvType, float] = {"f16": 1.0, "q8_0": 34 / 64, "q4_0": 18 / 64}
"""A block of 32 numbers with its scale, in place of 32 numbers of two bytes."""
LONG = "word " * 80


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights whose heads have 32 numbers."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "even.gguf", "small")


async def plan_of(engine: LlamaEngine) -> ModelInfo:
    """Start an engine and end it."""
    try:
        return await engine.start()
    finally:
        await engine.stop()


@pytest.mark.parametrize("kv_type", SHARES)
async def test_pool_memory_and_files_have_the_size_of_the_type(even: Path, tmp_path: Path, kv_type: KvType) -> None:
    """In bytes of a token, within what a state has beside its numbers."""
    tokens = 1024
    info = await plan_of(LlamaEngine(str(even), WorkerOptions(threads=1, pool_tokens=tokens, kv_type=kv_type)))
    assert info.engine is not None
    assert info.engine.kv_type == kv_type
    assert f"MiB of {kv_type}," in str(info.engine)
    full = 6 * 2 * 4 * 32 * 2  # layers, keys and values, heads, numbers of two bytes
    assert info.engine.pool_bytes / tokens == pytest.approx(full * SHARES[kv_type], rel=0.05)
    async with running(even, pool_tokens=tokens, kv_type=kv_type, disk=str(tmp_path)) as engine:
        answer = await ask(engine, LONG, "s", max_tokens=3)
        await until(engine, lambda stats: stats.gauges["disk_files"] > 0 and not stats.gauges["disk_pending_bytes"])
        gauges = (await engine.stats()).gauges
    count = answer.finished.usage.prompt_tokens + answer.finished.usage.completion_tokens - 1
    assert gauges["parked_bytes"] / count == pytest.approx(full * SHARES[kv_type], rel=0.05)
    assert gauges["disk_bytes"] / count == pytest.approx(full * SHARES[kv_type] + 4, rel=0.05)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
async def test_parked_state_comes_back_as_it_was(even: Path, tmp_path: Path, kv_type: KvType) -> None:
    """From memory, from the disk, and in the middle of a reply: the reply is that of a turn that ran through."""
    async with running(even, kv_type=kv_type) as engine:
        expected = await ask(engine, LONG, max_tokens=24)
    small = {"pool_tokens": 512, "context_tokens": 512, "parallel": 2, "slice_seconds": 0.001}
    async with running(even, kv_type=kv_type, disk=str(tmp_path), rest_seconds=0.01, **small) as engine:
        assert (await ask(engine, LONG, "s", max_tokens=24)).text == expected.text
        for number in range(4):
            await ask(engine, f"{number} " * 100, f"other {number}", max_tokens=24)
        await until(engine, lambda stats: stats.gauges["disk_files"] > 0 and not stats.gauges["parked_bytes"])
        again = await ask(engine, LONG, "s", max_tokens=24)
        assert again.text == expected.text
        assert again.finished.usage.cached_tokens == again.finished.usage.prompt_tokens - 1


async def test_state_of_another_type_is_never_used(even: Path, tmp_path: Path) -> None:
    """It is removed when a worker of another type starts."""
    for before, kv_type in (("", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "f16")):
        async with running(even, kv_type=kv_type, disk=str(tmp_path)) as engine:
            gauges = (await engine.stats()).gauges
            assert (gauges["disk_refused"], gauges["disk_files"]) == (float(bool(before)), 0)
            answer = await ask(engine, LONG, "s", max_tokens=3)
            assert answer.finished.usage.cached_tokens == 0
            await until(engine, lambda stats: stats.gauges["disk_files"] > 0 and not stats.gauges["disk_pending_bytes"])
    assert len(list((tmp_path / NAME).rglob("*.state"))) == 1


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        ("tiny", {}, "this model's heads have 16 numbers, no multiple of 32; use f16"),
        ("recurrent", {}, "this model has no attention; use f16"),
        ("even", {"flash_attention": False}, "--kv-type q8_0 cannot be used without flash attention; use f16"),
    ],
)
async def test_a_type_that_cannot_be_is_refused(
    request: pytest.FixtureRequest, model: str, options: dict[str, Any], reason: str
) -> None:
    """In one line that says what to do."""
    path = request.getfixturevalue(model)
    with pytest.raises(ModelLoadError) as refused:
        await plan_of(LlamaEngine(str(path), WorkerOptions(threads=1, kv_type="q8_0", **options)))
    assert str(refused.value).startswith(f"{path}: ")
    assert str(refused.value).endswith(reason)
