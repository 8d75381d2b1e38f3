"""Models of this machine: their workers start with the first turn, end when idle, and share a budget of memory."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from cfs.errors import EngineError, WorkerCrashed
from cfs_server.engine.contract.interface import Delta, Engine, Finished, GenerationRequest, ModelLoadError
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.memory_budget import MemoryBudget
from cfs_server.engine.host.on_demand import OnDemandEngine
from cfs_server.engine.host.router import ModelRouter
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.engine.host.token_log_store import TokenLogStore
from tests.engine.conformance import EngineConformance
from tests.engine.support import ask, collect, request, until
from tests.models.support import Models, models_server, table
from tests.pacing.gate import Gate, closed

ENDLESS = 1500
"""Tokens of a reply that lasts as long as a test needs it."""


def engine_of(path: Path, spec: str, logs: TokenLogStore | None = None) -> LlamaEngine:
    """Make the engine of one worker."""
    del path
    return LlamaEngine(spec, WorkerOptions(threads=1, flash_attention=False), logs=logs)


def on_demand(path: Path, budget: MemoryBudget | None = None, *, idle: float = 0, name: str = "") -> OnDemandEngine:
    """Make an engine that starts its worker when it is needed; it is never idle for too long by default."""
    make = partial(engine_of, path, str(path))
    return OnDemandEngine(name or path.stem, make, budget or MemoryBudget(), spec=str(path), idle=idle)


@asynccontextmanager
async def started(*engines: OnDemandEngine) -> AsyncIterator[None]:
    """Start engines, and stop them; no task of them is left."""
    try:
        for engine in engines:
            await engine.start()
        yield
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("model ", "engine "))]
    assert left == []


@pytest.fixture
def files(tmp_path: Path, tiny: Path) -> list[Path]:
    """Three models of the same size."""
    return [Path(shutil.copy(tiny, tmp_path / f"{name}.gguf")) for name in "abc"]


def streaming(engine: Engine, gate: Gate, wanted: GenerationRequest | None = None) -> AsyncGenerator[Delta | Finished]:
    """Begin a reply that does not end by itself. Soon after that the gate of its worker closes."""
    wanted = wanted or request("endless", max_tokens=ENDLESS)
    gate.close()
    return cast("AsyncGenerator[Delta | Finished]", engine.generate(wanted))


async def rest_of(items: AsyncIterator[Delta | Finished]) -> Finished:
    """Read a reply to its end."""
    found = [item async for item in items][-1]
    assert isinstance(found, Finished)
    return found


class TestOnDemandEngine(EngineConformance):
    """It does what every engine does; its first turn starts the worker."""

    @pytest.fixture
    async def engine(self, tiny: Path, gate: Gate) -> AsyncIterator[Engine]:
        """Nothing runs before the first turn."""
        self.gate = gate
        engine = on_demand(tiny)
        async with started(engine):
            yield engine

    def held(self) -> AbstractContextManager[object]:
        """Close the gate of the worker."""
        return closed(self.gate)

    def failing(self) -> GenerationRequest:
        """Ask with more than the context holds."""
        return request("too long " * 2000)


async def test_the_first_turn_starts_the_worker_and_an_idle_one_ends(tiny: Path) -> None:
    """Counters go on over all workers, and the model is described before it is loaded."""
    engine = on_demand(tiny, idle=0.01)
    async with started(engine):
        before = await engine.stats()
        info = engine.info()
        assert (before.loaded, before.loads, before.worker_pid, engine.ready) == (False, 0, None, True)
        assert (info.loaded, info.context_tokens > 0, info.parameters > 0, info.has_chat_template) == (
            False,
            True,
            True,
            True,
        )
        first = await ask(engine, "hello", max_tokens=5)
        assert engine.info().loaded
        await until(engine, lambda stats: not stats.loaded)
        ended = await engine.stats()
        assert (ended.loads, ended.worker_pid, ended.tokens_generated) == (1, None, 5)
        assert not engine.info().loaded
        assert (await ask(engine, "hello", max_tokens=5)).text == first.text
        after = await engine.stats()
        assert (after.loads, after.tokens_generated, after.restarts) == (2, 10, 0)


async def test_turns_that_come_together_share_one_worker(tiny: Path) -> None:
    engine = on_demand(tiny)
    async with started(engine):
        answers = await asyncio.gather(*(ask(engine, "hello", max_tokens=5) for _ in range(4)))
        counted = await engine.count_tokens(["hello"])
        assert len({answer.text for answer in answers}) == 1
        assert counted.texts[0] > 0
        assert (await engine.stats()).loads == 1
        usage = answers[0].finished.usage
        assert usage.total_seconds >= usage.first_token_seconds >= usage.queue_seconds > 0


async def test_a_turn_that_runs_keeps_the_worker(tiny: Path, gate: Gate) -> None:
    """However long it takes: only idle workers end."""
    engine = on_demand(tiny, idle=0.001)
    async with started(engine):
        items = streaming(engine, gate)
        await anext(items)
        for _ in range(20):
            await engine.stats()
        assert (await engine.stats()).loaded
        await items.aclose()
        await until(engine, lambda stats: not stats.loaded)


async def test_a_turn_can_be_cancelled_while_the_model_loads(tiny: Path) -> None:
    """If nobody else waits, the model is not loaded."""
    engine = on_demand(tiny)
    async with started(engine):
        wanted = request("hello")
        reading = asyncio.create_task(collect(engine, wanted))
        await until(engine, lambda stats: stats.waiting == 1)
        engine.cancel(wanted.id)
        assert (await reading).finished.reason == "cancelled"
        stats = await engine.stats()
        assert (stats.loads, stats.loaded, stats.waiting) == (0, False, 0)
        with pytest.raises(EngineError, match=r"longer than 0\.001 seconds"):
            await ask(engine, "hello", deadline_seconds=0.001)
        assert (await ask(engine, "hello", max_tokens=3)).text


async def test_a_model_that_cannot_be_loaded_fails_its_turns_and_is_tried_again(tmp_path: Path, tiny: Path) -> None:
    """The error names the model, and not the file."""
    path = Path(shutil.copy(tiny, tmp_path / "secret-place.gguf"))
    engine = on_demand(path, name="mine")
    async with started(engine):
        path.write_bytes(b"no model")  # noqa: ASYNC240 - a few bytes
        for _ in range(2):
            with pytest.raises(EngineError) as told:
                await ask(engine, "hello")
            assert told.value.detail == "model 'mine' cannot be loaded; the log of the server says why"
        shutil.copy(tiny, path)
        assert (await ask(engine, "hello", max_tokens=3)).text


async def test_a_model_that_never_fits_is_refused_at_the_start(tiny: Path) -> None:
    engine = on_demand(tiny, MemoryBudget(1000))
    with pytest.raises(ModelLoadError, match="more than --models-memory allows"):
        await engine.start()
    await engine.stop()


async def test_the_least_recently_used_idle_worker_ends_for_another_model(files: list[Path]) -> None:
    """Two of three fit."""
    budget = MemoryBudget(2 * files[0].stat().st_size)
    a, b, c = engines = [on_demand(path, budget) for path in files]
    async with started(*engines):
        for engine in (a, b, a, c):
            await ask(engine, "hello", max_tokens=2)
        assert [(await engine.stats()).loaded for engine in engines] == [True, False, True]
        await ask(b, "hello", max_tokens=2)
        assert [(await engine.stats()).loads for engine in engines] == [1, 2, 1]
        assert [(await engine.stats()).loaded for engine in engines] == [False, True, True]


async def test_a_turn_waits_while_all_workers_are_busy_and_nobody_waits_forever(files: list[Path], gate: Gate) -> None:
    """The busy model takes no new turns meanwhile; those that it has go on to their end."""
    budget = MemoryBudget(files[0].stat().st_size)
    a, b = engines = [on_demand(path, budget) for path in files[:2]]
    async with started(*engines):
        running = streaming(a, gate)
        await anext(running)
        other = asyncio.create_task(ask(b, "hello", max_tokens=2))
        await until(b, lambda stats: stats.waiting == 1)
        later = asyncio.create_task(ask(a, "hello", max_tokens=2))
        await until(a, lambda stats: stats.waiting == 1)
        gate.open()
        assert isinstance(await anext(running), Delta)
        await running.aclose()
        assert (await other).text
        assert (await later).text
        assert [(await engine.stats()).loads for engine in engines] == [2, 1]


async def test_a_turn_that_no_longer_waits_keeps_no_place(files: list[Path], gate: Gate) -> None:
    """The busy model goes on as before."""
    budget = MemoryBudget(files[0].stat().st_size)
    a, b = engines = [on_demand(path, budget) for path in files[:2]]
    async with started(*engines):
        running = streaming(a, gate)
        await anext(running)
        wanted = request("hello")
        other = asyncio.create_task(collect(b, wanted))
        await until(b, lambda stats: stats.waiting == 1)
        b.cancel(wanted.id)
        assert (await other).finished.reason == "cancelled"
        gate.open()
        assert (await ask(a, "hello", max_tokens=2)).text
        await running.aclose()
        assert [(await engine.stats()).loads for engine in engines] == [1, 0]


async def test_a_worker_that_is_killed_does_not_touch_the_other(files: list[Path], gate: Gate) -> None:
    """Its turn fails and it comes back, as the only worker of a server does."""
    a, b = engines = [on_demand(path) for path in files[:2]]
    router = ModelRouter({"a": a, "b": b}, "a")
    await router.start()
    try:
        for name in "ab":
            await ask(router, "hello", model=name, max_tokens=1)
        left = streaming(router, gate, request("endless", model="a", max_tokens=ENDLESS))
        right = streaming(router, gate, request("endless", model="b", max_tokens=60))
        await anext(left)
        await anext(right)
        pid = (await a.stats()).worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        gate.open()
        with pytest.raises(WorkerCrashed):
            await rest_of(left)
        assert (await rest_of(right)).usage.completion_tokens == 60
        assert (await ask(router, "hello", model="a", max_tokens=3)).text
        assert [(await engine.stats()).restarts for engine in engines] == [1, 0]
    finally:
        await router.stop()


async def test_a_stop_ends_turns_that_run_and_turns_that_wait(files: list[Path], gate: Gate) -> None:
    budget = MemoryBudget(files[0].stat().st_size)
    a, b = engines = [on_demand(path, budget) for path in files[:2]]
    async with started(*engines):
        running = streaming(a, gate)
        await anext(running)
        other = asyncio.create_task(ask(b, "hello"))
        await until(b, lambda stats: stats.waiting == 1)
        await b.stop()
        with pytest.raises(EngineError, match="stopped"):
            await other
        await a.stop()
        with pytest.raises(EngineError, match="stopped"):
            await rest_of(running)


# -- on a server ------------------------------------------------------------------------------------------------------


def loaded(models: Models) -> dict[str, bool]:
    """Read from the metrics which models are loaded."""
    lines = models.client.get("/metrics").text.splitlines()
    rows = [line for line in lines if line.startswith("cfs_model_loaded{")]
    return {row.split('"')[1]: row.endswith(" 1.0") for row in rows}


def test_two_models_answer_side_by_side_as_their_sessions_say(tmp_path: Path, smollm2: Path) -> None:
    """Each is loaded for its first turn; an idle one leaves, and comes back."""
    tables = (table("toy", model="embedded", idle=0.05), table("talker", model=str(smollm2), idle=0, context=512))
    with models_server(tmp_path, tables=tables, names=()) as models:
        client = models.client
        assert loaded(models) == {"toy": False, "talker": False}
        assert client.get("/api/ps").json() == {"models": []}
        assert [card["loaded"] for card in client.get("/v1/models").json()["data"]] == [False, False]
        client.post("/v1/sessions", json={"id": "left", "settings": {"temperature": 0}})
        talker = {"temperature": 0, "model": "talker", "max_tokens": 3}
        client.post("/v1/sessions", json={"id": "right", "settings": talker})
        for session in ("left", "right"):
            client.post(f"/v1/sessions/{session}/messages", content=b"My name is Alice.").raise_for_status()
        left, right = map(models.text, ("left", "right"))
        assert left.endswith("Nice to meet you, Alice!\n")
        assert right.startswith("User: My name is Alice.\nAssistant: ")
        assert right != left
        while loaded(models)["toy"]:
            pass
        assert loaded(models) == {"toy": False, "talker": True}
        assert [model["name"] for model in client.get("/api/ps").json()["models"]] == ["talker"]
        found = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert (found["talker"]["max_model_len"], found["talker"]["loaded"]) == (512, True)
        models.choose("right", "toy").raise_for_status()
        assert "Alice" in models.say("right", "What is my name?", max_tokens=40).splitlines()[-1]


def test_a_model_beyond_the_memory_ends_the_server_before_it_listens(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"cfs-demo has .* MiB, more than --models-memory allows"),
        models_server(tmp_path, "--models-memory", "1MiB", tables=(table("toy", model="embedded"),), names=()),
    ):
        pass
