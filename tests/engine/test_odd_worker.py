"""Whatever the worker's process says, the server goes on: with this worker if it can, else with another one."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.census import Census
from tests.engine import odd_worker
from tests.engine.support import ask


@asynccontextmanager
async def odd(model: Path, folder: Path, oddity: str) -> AsyncIterator[LlamaEngine]:
    """Run an engine whose first worker is odd."""
    command = (sys.executable, "-P", odd_worker.__file__, oddity, str(folder / "mark"))
    engine = LlamaEngine(str(model), command=command)
    before = Census.now()
    try:
        yield engine
    finally:
        await engine.stop()
        assert before.added() == []


@pytest.mark.parametrize("oddity", odd_worker.ODDITIES)
async def test_a_worker_that_says_what_is_no_frame_is_replaced(tiny: Path, tmp_path: Path, oddity: str) -> None:
    """Its turn had not spoken, so the next worker answers it; a length of 2 GiB is not waited for."""
    async with odd(tiny, tmp_path, oddity) as engine:
        await engine.start()
        assert (await ask(engine, "hello?", max_tokens=5)).finished.usage.completion_tokens == 5
        assert (await engine.stats()).restarts == 1


async def test_a_worker_that_says_no_frame_at_once_cannot_be_started(tiny: Path, tmp_path: Path) -> None:
    """The operator is told in one line."""
    async with odd(tiny, tmp_path, "at once: no json") as engine:
        with pytest.raises(ModelLoadError, match="no frame"):
            await engine.start()


async def test_a_next_worker_that_says_no_frame_is_followed_by_another(tiny: Path, tmp_path: Path) -> None:
    """The supervisor outlives it."""
    mark = tmp_path / "mark"
    mark.touch()
    async with odd(tiny, tmp_path, "at once: unknown kind") as engine:
        await engine.start()
        mark.unlink()
        pid = (await engine.stats()).worker_pid
        assert pid is not None
        psutil.Process(pid).kill()
        while (await engine.stats()).worker_pid == pid:
            pass
        assert (await ask(engine, "hello?", max_tokens=5)).finished.usage.completion_tokens == 5
        assert mark.exists()


async def test_news_of_turns_that_nobody_knows_are_ignored(tiny: Path, tmp_path: Path) -> None:
    """They were cancelled, or never were."""
    async with odd(tiny, tmp_path, "strangers") as engine:
        await engine.start()
        assert (await ask(engine, "hello?")).text == "hello"
        assert engine.ready
