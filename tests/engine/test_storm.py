"""Everything at once, at random: submit, cancel, hint, delete, crash, slow readers. At the end nothing is left."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest

from cfs.errors import EngineError, WorkerCrashed
from cfs.wire import Message
from cfs_server.engine.contract.interface import Delta, Engine, Finished, GenerationRequest, Hint, Kind, WorkerLost
from cfs_server.engine.host.streams import BackpressureLimits
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.census import Census
from tests.engine.support import Answer, collect, request, running, until, user

SHARED = "the rules are these: " * 20


async def held(engine: LlamaEngine, outside: Census) -> tuple[int, int]:
    """Count what an engine has in this process, and the threads of its worker."""
    pid = (await engine.stats()).worker_pid
    return len(outside.added()), psutil.Process(pid).num_threads()


@pytest.mark.parametrize("seconds", [4, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
@pytest.mark.parametrize(
    "kind",
    [
        *("hybrid", "tiny, disk"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tiny", "windowed", "recurrent")),
    ],
)
async def test_a_storm_leaves_nothing(request_model: Path, seconds: int, kind: str, tmp_path: Path) -> None:
    """No turn fails but by a crash, and the books are right throughout.

    In the end there is no cell, sequence id, byte, thread, descriptor, file or process more than before.
    """
    outside = Census.now()
    dice = random.Random(seconds)
    small = {"pool_tokens": 1536, "context_tokens": 1024, "parked_bytes": 300_000}
    impatient: dict[str, Any] = {
        "backpressure": BackpressureLimits(tokens=4),
        "slice_seconds": 0.05,
        "idle_seconds": 0.05,
    }
    disk: dict[str, Any] = {"disk": str(tmp_path), "disk_bytes": 500_000} if "disk" in kind else {}
    async with running(request_model, **small, **impatient, **disk, parallel=4) as engine:
        await collect(engine, request("some things start with the first turn", "first"))
        inside = await held(engine, outside)
        tasks: dict[str, asyncio.Task[Answer]] = {}
        keys = [f"s{number}" for number in range(12)]
        crashes, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            action, key = dice.random(), dice.choice(keys)
            if action < 0.4 and sum(not task.done() for task in tasks.values()) < 20:
                start = [Message(role="system", content=SHARED)] if dice.random() < 0.5 else []
                wanted = request(
                    [*start, user("word " * dice.randrange(1, 40))],
                    key,
                    owner=dice.choice("ab"),
                    kind=dice.choice(get_args(Kind)),
                    account=dice.choice(["", "family"]),
                    max_tokens=dice.randrange(1, 60),
                    temperature=dice.choice([0.0, 1.0]),
                    deadline_seconds=dice.choice([None, None, 60, dice.random() / 4]),
                )
                read = collect if dice.random() < 0.7 else read_slowly
                tasks[wanted.id] = asyncio.create_task(read(engine, wanted))
            elif action < 0.5 and tasks:
                engine.cancel(dice.choice(list(tasks)))
            elif action < 0.55 and tasks:
                dice.choice(list(tasks.values())).cancel()
            elif action < 0.65:
                engine.forget(key)
            elif action < 0.75:
                engine.hint(key, dice.choice(get_args(Hint)))
            elif action < 0.752 and crashes < 2 + seconds // 30:
                pid = (await engine.stats()).worker_pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    crashes += 1
            elif action < 0.8:
                assert await engine.check_integrity() == []
            await asyncio.sleep(0.002)
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        late = [result for result in results if isinstance(result, EngineError) and "longer than" in result.detail]
        others = [result for result in results if result not in late]
        assert {type(result) for result in others} <= {Answer, WorkerCrashed, WorkerLost, asyncio.CancelledError}
        assert sum(isinstance(result, Answer) for result in results) > len(results) / 4
        for key in (*keys, "first"):
            engine.forget(key)
        await until(engine, lambda stats: stats.worker_pid is not None)
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.gauges["turns_paused"]) == (0, 0, 0)
        assert (stats.cells_used, stats.sequences_resident) == (0, 0)
        assert (stats.sequences_parked, stats.gauges["parked_bytes"], stats.gauges["prefix_nodes"]) == (0, 0, 0)
        assert await engine.check_integrity() == []
        assert stats.gauges.get("disk_bytes", 0) == 0
        while files_in(tmp_path):  # they are removed in the background
            await engine.stats()
        assert await held(engine, outside) == inside
    assert outside.added() == []


def files_in(folder: Path) -> list[Path]:
    """List the state files below a folder."""
    return list(folder.glob("*/*.*"))


async def read_slowly(engine: Engine, wanted: GenerationRequest) -> Answer:
    """Run a generation to its end, with a rest after each piece."""
    items: list[Delta | Finished] = []
    async for item in engine.generate(wanted):
        items.append(item)
        await asyncio.sleep(0.02)
    assert isinstance(items[-1], Finished)
    return Answer(tuple(item for item in items if isinstance(item, Delta)), items[-1])


@pytest.fixture
def request_model(request: pytest.FixtureRequest, kind: str) -> Path:
    """The model of this kind."""
    path: Path = request.getfixturevalue(kind.split(",")[0])
    return path
