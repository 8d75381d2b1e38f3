"""The worker process can die at any time; what stays is a server with its sessions, and a new worker (E1)."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cfs.errors import EngineError, Unavailable, WorkerCrashed
from cfs_server.engine.contract import protocol
from cfs_server.engine.contract.interface import Delta, Finished, ModelLoadError
from cfs_server.engine.host.process import COMMAND, Heartbeat
from cfs_server.engine.host.supervisor import LlamaEngine, ProbePolicy
from cfs_server.engine.llama import probe
from tests.census import Census
from tests.engine import hanging_worker
from tests.engine.support import Answer, answer_of, ask, collect, request, running, until
from tests.pacing.gate import Gate


async def kill_worker(engine: LlamaEngine, number: signal.Signals = signal.SIGKILL) -> int:
    """Kill the worker process as the kernel would, out of memory."""
    pid = (await engine.stats()).worker_pid
    assert pid is not None
    os.kill(pid, number)
    return pid


async def begin(
    engine: LlamaEngine, gate: Gate, content: str, key: str | None = None, **changes: Any
) -> asyncio.Task[Answer]:
    """Start a long turn, read in a task, and return when it speaks. Soon after that the gate of the engine closes."""
    speaking = asyncio.Event()

    async def read() -> Answer:
        items: list[Delta | Finished] = []
        async for item in engine.generate(request(content, key, **{"max_tokens": 1900} | changes)):
            items.append(item)
            speaking.set()
        return answer_of(items)

    gate.close()
    task = asyncio.create_task(read())
    await speaking.wait()
    return task


@pytest.mark.parametrize("chosen", [None, "7"])
async def test_threads_that_compute_sleep_between_steps(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    """They leave the processors to others soon, not after milliseconds; who starts the server may choose otherwise."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if chosen:
        monkeypatch.setenv("GOMP_SPINCOUNT", chosen)
    engine = LlamaEngine(str(tiny), command=("env", *COMMAND))
    try:
        await engine.start()
        environment = psutil.Process((await engine.stats()).worker_pid).environ()
    finally:
        await engine.stop()
    assert environment["GOMP_SPINCOUNT"] == (chosen or "20000")


async def test_running_turns_fail_and_the_next_one_works(tiny: Path, gate: Gate) -> None:
    """`kill -9` in the middle of ten streams: each gets the reason, and a new worker serves the next turn."""
    async with running(tiny, parallel=10) as engine:
        turns = await asyncio.gather(*(begin(engine, gate, f"turn {number}") for number in range(10)))
        first = await kill_worker(engine)
        gate.open()
        results = await asyncio.gather(*turns, return_exceptions=True)
        assert all(isinstance(result, WorkerCrashed) and "SIGKILL" in result.detail for result in results)
        assert (await ask(engine, "still there?", max_tokens=5)).finished.usage.completion_tokens == 5
        stats = await engine.stats()
        assert stats.restarts == 1
        assert stats.worker_pid != first
        assert stats.tokens_generated >= 15, "what the dead worker did still counts"


async def test_waiting_turns_go_on_with_the_next_worker(tiny: Path, gate: Gate) -> None:
    """Turns that had not begun when the worker died do not notice."""
    async with running(tiny, parallel=1) as engine:
        speaking = await begin(engine, gate, "first")
        waiting = [asyncio.create_task(ask(engine, f"{number}", max_tokens=5)) for number in range(5)]
        await until(engine, lambda stats: stats.waiting == 5)
        await kill_worker(engine)
        gate.open()
        with pytest.raises(WorkerCrashed):
            await speaking
        for answer in await asyncio.gather(*waiting):
            assert answer.finished.usage.completion_tokens == 5


async def test_turns_can_come_and_go_while_there_is_no_worker(tiny: Path, gate: Gate) -> None:
    """Between two workers a turn waits, a cancelled one ends, and stats say what is going on."""
    async with running(tiny) as engine:
        speaking = await begin(engine, gate, "first")
        await kill_worker(engine)
        gate.open()
        with pytest.raises(WorkerCrashed):
            await speaking
        assert not engine.ready
        assert (await engine.stats()).state == "restarting"
        unwanted = request("never mind")
        cancelled = asyncio.create_task(collect(engine, unwanted))
        waiting = asyncio.create_task(ask(engine, "later", max_tokens=5))
        await asyncio.sleep(0)
        engine.cancel(unwanted.id)
        engine.forget("anything")
        assert (await cancelled).finished.reason == "cancelled"
        assert (await waiting).finished.usage.completion_tokens == 5
        assert engine.ready


async def test_a_worker_that_is_told_to_end_is_replaced_as_well(tiny: Path) -> None:
    """SIGTERM to the worker alone is a crash like any other; again and again."""
    async with running(tiny) as engine:
        for count in range(1, 4):
            await kill_worker(engine, signal.SIGTERM)
            assert (await ask(engine, "hello", max_tokens=3)).text is not None
            assert (await engine.stats()).restarts == count


async def test_a_worker_that_hangs_is_not_waited_for_without_end(tiny: Path) -> None:
    """Counting tokens fails with a 503 that says why; figures are those that are known; later all is well."""
    engine = LlamaEngine(str(tiny), answer_seconds=0.5)
    await engine.start()
    pid = (await engine.stats()).worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222 - one of its threads may go on for a moment
    try:
        with pytest.raises(Unavailable, match=r"has not answered for 0\.5 seconds") as caught:
            await engine.count_tokens(["one two"])
        assert caught.value.status == 503
        assert caught.value.retry_after
        assert (await engine.stats()).state == "ready"
    finally:
        os.kill(pid, signal.SIGCONT)
    try:
        while True:  # it has questions to answer that no caller waits for
            with contextlib.suppress(Unavailable):
                assert (await engine.count_tokens(["one two"])).texts[0] > 0
                break
    finally:
        await engine.stop()


QUICK = Heartbeat(limit=2.0, busy=0.25, idle=0.5)


@asynccontextmanager
async def watched(
    model: Path, command: Sequence[str] = COMMAND, heartbeat: Heartbeat = QUICK
) -> AsyncIterator[LlamaEngine]:
    """Run an engine whose heartbeat is quick."""
    engine = LlamaEngine(str(model), protocol.WorkerOptions(threads=1), heartbeat=heartbeat, command=command)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_a_worker_that_hangs_is_replaced(tiny: Path, gate: Gate) -> None:
    """`kill -STOP` in the middle of a stream: the turn fails as after a crash, others go on, and the reason is said."""
    async with watched(tiny) as engine:
        speaking = await begin(engine, gate, "first")
        first = await kill_worker(engine, signal.SIGSTOP)
        gate.open()
        waiting = asyncio.create_task(ask(engine, "second", max_tokens=5))
        with pytest.raises(WorkerCrashed, match=r"hung: no response for \d s"):
            await speaking
        assert not engine.ready
        assert "no response" in (await engine.stats()).reason
        assert (await waiting).finished.usage.completion_tokens == 5
        stats = await engine.stats()
        assert (stats.restarts, stats.restarts_by_reason, stats.reason) == (1, {"crash": 0, "hang": 1}, "")
        assert not psutil.pid_exists(first)


async def test_an_idle_worker_that_hangs_is_replaced_before_it_is_needed(tiny: Path) -> None:
    async with watched(tiny) as engine:
        pid = (await engine.stats()).worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await asyncio.to_thread(psutil.Process(pid).wait, 30)
        assert (await ask(engine, "hello", max_tokens=3)).finished.usage.completion_tokens == 3
        assert (await engine.stats()).restarts_by_reason == {"crash": 0, "hang": 1}


async def test_a_step_that_never_ends_is_noticed_although_other_threads_live(tiny: Path, tmp_path: Path) -> None:
    """It is the engine's thread that must make progress; only that turn fails."""
    command = (sys.executable, "-P", hanging_worker.__file__, "hang", str(tmp_path / "mark"))
    async with watched(tiny, command) as engine:
        with pytest.raises(WorkerCrashed, match="hung"):
            await ask(engine, "first", max_tokens=50)
        assert (await ask(engine, "second", max_tokens=50)).finished.usage.completion_tokens == 50
        assert (await engine.stats()).restarts_by_reason["hang"] == 1


async def test_a_worker_that_computes_is_not_taken_for_one_that_hangs(tiny: Path, tmp_path: Path) -> None:
    """An unpredicted step takes twice the limit, as on a machine that is overloaded: no caller notices."""
    command = (sys.executable, "-P", hanging_worker.__file__, "late", str(tmp_path / "mark"))
    async with watched(tiny, command) as engine:
        assert (await ask(engine, "first", max_tokens=50)).finished.usage.completion_tokens == 50
        assert (await engine.stats()).restarts == 0


async def test_a_step_that_computes_for_ever_is_noticed_later(tiny: Path, tmp_path: Path) -> None:
    """The extended limit of a worker that uses CPU time is bounded."""
    command = (sys.executable, "-P", hanging_worker.__file__, "spin", str(tmp_path / "mark"))
    async with watched(tiny, command, replace(QUICK, computing=1.5)) as engine:
        with pytest.raises(WorkerCrashed, match=r"hung: no response for [34] s"):
            await ask(engine, "first", max_tokens=50)
        assert (await ask(engine, "second", max_tokens=50)).finished.usage.completion_tokens == 50


async def test_steps_that_are_known_to_be_long_are_waited_for(tiny: Path, tmp_path: Path) -> None:
    """Each takes longer than the heartbeat's limit; the first is not predicted, and has its time as well."""
    command = (sys.executable, "-P", hanging_worker.__file__, "slow", str(tmp_path / "mark"))
    async with watched(tiny, command) as engine:
        assert (await ask(engine, "hello", max_tokens=2)).finished.usage.completion_tokens == 2
        assert (await engine.stats()).restarts == 0


async def test_a_model_that_vanished_is_told_to_those_who_wait(tiny: Path, tmp_path: Path) -> None:
    """When no new worker can be started, turns fail with the reason in place of waiting for ever."""
    model = tmp_path / "model.gguf"
    model.hardlink_to(tiny)
    engine = LlamaEngine(str(model))
    await engine.start()
    try:
        model.unlink()
        await kill_worker(engine)
        for _ in range(2):
            with pytest.raises(WorkerCrashed, match=r"cannot be started again: .*model\.gguf"):
                await ask(engine, "anyone?")
    finally:
        await engine.stop()


async def test_stop_leaves_nothing_behind(tiny: Path, gate: Gate) -> None:
    """After `stop` there is no process, thread, descriptor or task of the engine; running turns have failed."""

    async def life() -> None:
        gate.open()
        engine = LlamaEngine(str(tiny))
        await engine.start()
        turn = await begin(engine, gate, "endless")
        waiting = asyncio.create_task(engine.stats())
        await engine.stop()
        with pytest.raises(EngineError, match="stopped"):
            await turn
        assert (await waiting) is not None
        assert (await engine.stats()).state == "stopped"
        with pytest.raises(EngineError, match="is not running"):
            await ask(engine, "too late")

    await life()  # the first time, the event loop itself opens what it keeps
    before, tasks = Census.now(), asyncio.all_tasks()
    for _ in range(3):
        await life()
    assert before.added() == []
    assert asyncio.all_tasks() <= tasks


async def test_stop_while_the_worker_is_being_replaced(tiny: Path) -> None:
    """The end may come at any moment."""
    before = Census.now()
    engine = LlamaEngine(str(tiny))
    await engine.start()
    await kill_worker(engine)
    await engine.stop()
    assert before.added() == []


def test_the_worker_dies_with_its_server(tiny: Path) -> None:
    """A server that is killed leaves no worker behind."""
    program = f"""
import asyncio
from cfs_server.engine.host.supervisor import LlamaEngine

async def main():
    engine = LlamaEngine({str(tiny)!r})
    await engine.start()
    print((await engine.stats()).worker_pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        worker = psutil.Process(int(next(line for line in server.stdout if line.strip().isdigit())))  # after the log
        server.kill()
        worker.wait(timeout=30)


async def test_a_probe_that_dies_turns_the_fast_code_off(tiny: Path) -> None:
    """On a machine whose native code crashes, the engine says so and runs without it (ENGINE.md)."""
    crash = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    engine = LlamaEngine(str(tiny), probing=ProbePolicy(needed=lambda: True, command=crash))
    info = await engine.start()
    try:
        assert info.notes == (probe.NOTE,)
        assert (await ask(engine, "and yet", max_tokens=3)).finished.usage.completion_tokens == 3
    finally:
        await engine.stop()


@pytest.mark.server
async def test_the_probe_passes_here(tiny: Path) -> None:
    """The real probe, with a real model; a bad model is not its business."""
    assert await probe.survives(tiny)
    assert await probe.survives(tiny.parent / "missing.gguf")


@pytest.mark.server
async def test_a_probe_that_hangs_is_ended(tiny: Path) -> None:
    """It says nothing then, and leaves no process."""
    before = Census.now()
    forever = (sys.executable, "-c", "import time; time.sleep(1000)")
    assert await probe.survives(tiny, forever, timeout=0.2)
    assert before.added() == []


def test_the_probe_is_for_processors_with_amx(tmp_path: Path) -> None:
    """Others are spared the time."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n")
    assert probe.is_needed(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu avx2\n")
    assert not probe.is_needed(cpuinfo)
    assert not probe.is_needed(tmp_path / "missing")


async def test_a_bad_model_leaves_no_process(tmp_path: Path, tiny: Path) -> None:
    """Also when it is the library that finds out."""
    before = Census.now()
    broken = tmp_path / "broken.gguf"
    shutil.copy(tiny, broken)
    os.truncate(broken, 100_000)
    with pytest.raises(ModelLoadError):
        await LlamaEngine(str(broken)).start()
    assert before.added() == []
