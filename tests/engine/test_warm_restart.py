"""State outlives the worker and the server, and belongs to one session's owner, whatever happens to it."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

import make_random_gguf
from cfs.wire import Message
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.memory_budget import MemoryBudget
from cfs_server.engine.host.on_demand import OnDemandEngine
from cfs_server.engine.host.router import ModelRouter
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.engine.host.token_log_store import TokenLogStore
from cfs_server.engine.kvcache.state_file import read_head
from cfs_server.engine.kvcache.state_folder import NAME
from tests.engine.support import Answer, ask, collect, request, running, until, user

SESSIONS, PROMPT_TOKENS = 50, 4_000
WORDS = ("alder", "birch", "cedar", "elm", "fir", "hazel", "maple", "oak", "pine", "rowan", "willow", "yew")


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for the conversations of this module."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "long.gguf", context=8192)


def secret(number: int, words: int) -> str:
    """Words that no other number has in this order."""
    dice = random.Random(number)
    return " ".join(dice.choices(WORDS, k=words))


def replied(answer: Answer) -> Message:
    """Make the message of a reply."""
    return Message(role="assistant", content=answer.text)


def files(folder: Path) -> list[Path]:
    """List the files of state."""
    return list((folder / NAME).rglob("*.state"))


def named(folder: Path) -> set[str]:
    """Collect the sessions that the files of state name."""
    names: set[str] = set()
    for path in files(folder):
        with contextlib.suppress(FileNotFoundError), FileIO(path) as file:
            names.update(read_head(file).sessions)
    return names


async def is_written(engine: LlamaEngine, count: int) -> None:
    """Wait until all state is on disk."""
    await until(engine, lambda stats: stats.gauges["disk_files"] >= count and not stats.gauges["disk_pending_bytes"])


async def kill(engine: LlamaEngine) -> None:
    """End the worker as a power cut would, and wait for the next one."""
    stats = await engine.stats()
    assert stats.worker_pid is not None
    os.kill(stats.worker_pid, signal.SIGKILL)
    await until(engine, lambda now: now.restarts > stats.restarts and now.worker_pid is not None)


def computed(answers: Sequence[Answer]) -> tuple[int, int]:
    """Sum up the prompt tokens that were computed, and all prompt tokens."""
    usages = [answer.finished.usage for answer in answers]
    total = sum(usage.prompt_tokens for usage in usages)
    return total - sum(usage.cached_tokens for usage in usages), total


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "sessions", [3, pytest.param(SESSIONS, marks=pytest.mark.slow)], ids=["few sessions", "all sessions"]
)
async def test_the_first_turn_after_a_restart_computes_little(long_model: Path, tmp_path: Path, sessions: int) -> None:
    """The next server has no token log, and the replies are noise that is never tokenized as the model wrote it."""
    options: dict[str, Any] = {"disk": str(tmp_path), "flash_attention": False}
    histories: list[list[Message]] = []
    async with running(long_model, **options) as engine:
        for number in range(sessions):
            history = [user(secret(number, 1))]
            for words in (PROMPT_TOKENS // 9, PROMPT_TOKENS // 9):
                history.append(replied(await ask(engine, history, f"s{number}", max_tokens=12)))
                history.append(user(secret(-number, words)))
            answer = await ask(engine, history, f"s{number}", max_tokens=12)
            histories.append([*history, replied(answer), user("more")])
        await is_written(engine, sessions)
        stats = await engine.stats()
        assert stats.worker_pid is not None
        os.kill(stats.worker_pid, signal.SIGKILL)
    async with running(long_model, **options) as engine:
        answers = [await ask(engine, history, f"s{number}", max_tokens=2) for number, history in enumerate(histories)]
        evaluated, total = computed(answers)
        assert total >= sessions * PROMPT_TOKENS * 0.9
        assert evaluated <= total / 5
        assert (await engine.stats()).gauges["disk_reads"] >= sessions


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
async def test_nobody_gets_the_state_of_another(long_model: Path, tmp_path: Path, count: int) -> None:
    """Many secrets under eviction, parking, cancels, deletions and killed workers: each reply is that of its secret.

    Two sessions of an owner begin alike, and so do those of different owners. A reply of a worker that has no other
    state is the measure.
    """
    prompts = [[user(f"the secret of the {number % 4}th room: {secret(number, 25)}")] for number in range(count)]
    async with running(long_model, flash_attention=False, parked_bytes=0) as engine:
        expected = [await ask(engine, prompt, max_tokens=6) for prompt in prompts]
    assert len({answer.text for answer in expected}) > count * 0.7, "replies tell secrets apart"
    small: dict[str, Any] = {"pool_tokens": 2048, "context_tokens": 1024, "parallel": 4, "slice_seconds": 0.001}
    tiers: dict[str, Any] = {"disk": str(tmp_path), "parked_bytes": 400_000, "rest_seconds": 0.01}
    dice = random.Random(5)
    async with running(long_model, flash_attention=False, disk_bytes=2_000_000, **tiers, **small) as engine:

        async def turn(number: int) -> None:
            wanted = request(
                prompts[number], f"s{number}", max_tokens=6, owner=f"owner {number % 3}", account=f"s{number}"
            )
            if dice.random() < 0.2:
                asyncio.get_running_loop().call_soon(engine.cancel, wanted.id)
            answer = await collect(engine, wanted)
            if answer.finished.reason != "cancelled":
                assert answer.text == expected[number].text, number
            if dice.random() < 0.1:
                engine.forget(f"s{number}")

        for beginning in range(3):
            numbers = dice.sample(range(count), count)
            for start in range(0, count, 20):
                await asyncio.gather(*map(turn, numbers[start : start + 20]))
            if beginning < 2:
                await kill(engine)
        stats = await engine.stats()
        assert stats.gauges["disk_reads"] > 0, "state came back from disk"
        for number in range(count):
            engine.forget(f"s{number}")
        await until(engine, lambda stats: not stats.gauges["disk_files"])
    assert files(tmp_path) == []


async def test_state_of_sessions_that_are_gone_is_removed_at_the_start(long_model: Path, tmp_path: Path) -> None:
    """A server may end between the deletion of a session and that of its state."""
    async with running(long_model, disk=str(tmp_path)) as engine:
        await ask(engine, secret(1, 60), "a", max_tokens=3)
        await ask(engine, secret(2, 60), "b", max_tokens=3)
        await is_written(engine, 3)
    async with running(long_model, disk=str(tmp_path)) as engine:
        engine.keep_only(lambda: ["a"])
        await until(engine, lambda stats: stats.gauges["disk_files"] == 2)  # its own, and what both begin with
        again = await ask(engine, secret(1, 60), "a", max_tokens=3)
        assert computed([again])[0] == 1
        await kill(engine)
        engine.keep_only(list)
        await until(engine, lambda stats: not stats.gauges["disk_files"])


async def test_state_at_rest_is_on_disk_only(long_model: Path, tmp_path: Path) -> None:
    """An idle session takes no memory beside the pool, and comes back exactly."""
    async with running(long_model, disk=str(tmp_path), flash_attention=False, rest_seconds=0.01) as engine:
        history = [user(secret(1, 300))]
        first = await ask(engine, history, "s", max_tokens=8)
        await until(engine, lambda stats: stats.gauges["disk_files"] > 0 and not stats.gauges["parked_bytes"])
        again = await ask(engine, history, "s", max_tokens=8)
        assert again.text == first.text
        assert computed([again])[0] == 1


async def test_a_stopping_server_writes_what_waits(long_model: Path, tmp_path: Path) -> None:
    """However low the rate is."""
    async with running(long_model, disk=str(tmp_path), disk_rate=1) as engine:
        await ask(engine, secret(1, 60), "s", max_tokens=3)
    assert len(files(tmp_path)) == 1


async def test_a_model_that_is_loaded_later_learns_which_sessions_exist(long_model: Path, tmp_path: Path) -> None:
    """Of several models, with a worker that starts for the first turn."""
    options = WorkerOptions(threads=1, disk=str(tmp_path))
    async with running(long_model, disk=str(tmp_path)) as engine:
        await ask(engine, secret(1, 60), "a", max_tokens=3)
        await ask(engine, secret(2, 60), "b", max_tokens=3)
        await is_written(engine, 3)

    def make(logs: TokenLogStore) -> LlamaEngine:
        return LlamaEngine(str(long_model), options, logs=logs)

    model = OnDemandEngine("later", make, MemoryBudget(), spec=str(long_model), idle=0)
    router = ModelRouter({"later": model}, "later")
    await router.start()
    try:
        router.keep_only(lambda: ["a"])
        again = await ask(router, secret(1, 60), "a", max_tokens=3)
        assert computed([again])[0] == 1
        while "b" in named(tmp_path):
            await model.stats()
    finally:
        await router.stop()
