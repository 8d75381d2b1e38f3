"""Embeddings of the worker: the same vectors as the library's own interface, between the steps of turns."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import Llama

import make_random_gguf
from cfs.errors import ContextTooLong, EngineError, InvalidRequest, TokenRefused, Unsupported, WorkerCrashed
from cfs_server.engine.contract.interface import EmbeddingRequest, Embeddings, ModelLoadError
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.process import in_thread
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.engine.llama import probe
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from cfs_server.engine.worker.embeddings import EmbeddingJob, EmbeddingRunner
from tests.engine.support import ask, step_until, until
from tests.pacing.gate import Gate

TEXTS = ("hello world", "hello there, how are you?", "a", "numbers: 1 2 3")
SHAPES = (("encoder", "mean"), ("encoder", "cls"), ("tiny", "mean"), ("tiny", "last"), ("recurrent", "mean"))


def model_of(folder: Path, shape: str, pooling: str, **changes: Any) -> Path:
    """Make a model for embeddings."""
    return make_random_gguf.make(folder / f"{shape}-{pooling}.gguf", shape, pooling=pooling, **changes)


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[LlamaEngine]:
    """Run a model, and check the invariants of its worker at the end."""
    engine = LlamaEngine(str(path), WorkerOptions(**{"threads": 1} | options))
    await engine.start()
    try:
        yield engine
        if engine.ready:
            assert await engine.check_integrity() == []
    finally:
        await engine.stop()


async def embed(engine: LlamaEngine, *inputs: str | tuple[int, ...], **changes: Any) -> Embeddings:
    """Request vectors."""
    return await engine.embed(EmbeddingRequest(tuple(inputs), **changes))


def by_library(path: Path, texts: tuple[str, ...], context: int = 512) -> tuple[list[Any], int]:
    """Return the vectors of the library's own interface, and the number of tokens."""
    model = Llama(
        str(path), embedding=True, n_ctx=context, n_batch=context, n_ubatch=context, n_threads=1, verbose=False
    )
    try:
        vectors, tokens = model.embed(list(texts), normalize=True, return_count=True)
        return list(vectors), int(tokens)
    finally:
        model.close()


def same(vectors: Any, expected: Any) -> bool:
    """Whether vectors of length 1 have the same direction, but for the rounding of a long sum."""
    return bool((np.sum(np.array(vectors) * np.array(expected), axis=-1) > 0.9995).all())


@pytest.mark.parametrize(("shape", "pooling"), SHAPES)
async def test_vectors_are_those_of_the_library(tmp_path: Path, shape: str, pooling: str) -> None:
    path = model_of(tmp_path, shape, pooling)
    expected, tokens = by_library(path, TEXTS)
    async with running(path) as engine:
        together = await embed(engine, *TEXTS)
        alone = [(await embed(engine, text)).vectors[0] for text in TEXTS]
    assert same(together.vectors, expected)
    assert same(alone, expected)
    assert together.tokens == tokens
    assert np.allclose(np.linalg.norm(np.array(together.vectors), axis=1), 1, atol=1e-5)
    assert not same(together.vectors[0], together.vectors[1]), "the texts are told apart"


@pytest.mark.parametrize(("shape", "pooling"), [("encoder", "mean"), ("tiny", "mean"), ("tiny", "last")])
async def test_a_long_text_has_the_vector_of_one_step(tmp_path: Path, shape: str, pooling: str) -> None:
    """A model that can takes it in pieces; the library needs one step."""
    path, context = model_of(tmp_path, shape, pooling, context=1024), 1024
    text = "one two three four five " * 40
    expected, tokens = by_library(path, (text,), context)
    assert tokens > 512
    async with running(path) as engine:
        found = await embed(engine, text, "short")
        steps = (await engine.stats()).steps
    assert same(found.vectors[0], expected[0])
    assert steps == (2 if shape == "encoder" else -(-tokens // 128) + 1)


async def test_tokens_are_taken_as_they_are(tmp_path: Path) -> None:
    async with running(model_of(tmp_path, "tiny", "mean")) as engine:
        text, tokens = await embed(engine, "hello"), await embed(engine, tuple(b"hello"))
        assert same(text.vectors, tokens.vectors)
        with pytest.raises(TokenRefused, match="no token 512: its numbers end at 511"):
            await embed(engine, (1, 512))


@pytest.mark.parametrize("shape", ["encoder", "tiny"])
async def test_a_text_that_is_too_long_is_refused_or_cut(tmp_path: Path, shape: str) -> None:
    path = model_of(tmp_path, shape, "mean", context=64)
    async with running(path) as engine:
        for text in ("x1" * 60, "x" * 100_000):
            with pytest.raises(ContextTooLong, match=r"the model's context holds 64"):
                await embed(engine, text)
            assert (await embed(engine, text, truncate=True)).tokens == 64
        with pytest.raises(ContextTooLong):
            await embed(engine, "short", tuple([1] * 65))
        assert len((await embed(engine, "short", tuple([1] * 65), truncate=True)).vectors) == 2


async def test_a_model_for_texts_makes_no_embeddings(tiny: Path) -> None:
    async with running(tiny) as engine:
        with pytest.raises(Unsupported, match="names no pooling"):
            await embed(engine, "hello")
        assert (await ask(engine, "hello")).text


async def test_a_model_for_embeddings_makes_no_texts(tmp_path: Path) -> None:
    engine = LlamaEngine(str(model_of(tmp_path, "encoder", "mean")), WorkerOptions(threads=1))
    info = await engine.start()
    try:
        assert (info.capabilities, info.pooling, info.context_tokens) == (("embedding",), "mean", 512)
        assert info.notes == ("this model makes embeddings, no texts, so it cannot answer in sessions",)
        with pytest.raises(EngineError, match="makes embeddings, no texts"):
            await ask(engine, "hello")
        counted = await engine.count_tokens(["a b"])
        assert counted.texts == (2,)
    finally:
        await engine.stop()


async def test_an_encoder_without_pooling_is_refused_at_the_start(tmp_path: Path) -> None:
    engine = LlamaEngine(str(make_random_gguf.make(tmp_path / "raw.gguf", "encoder")), WorkerOptions(threads=1))
    with pytest.raises(ModelLoadError, match="not a text generation or embedding model"):
        await engine.start()


async def test_another_length_of_vectors_is_refused(tmp_path: Path) -> None:
    async with running(model_of(tmp_path, "encoder", "mean")) as engine:
        assert len((await embed(engine, "hello", dimensions=64)).vectors[0]) == 64
        with pytest.raises(InvalidRequest, match="have 64 numbers"):
            await embed(engine, "hello", dimensions=32)


async def test_turns_go_on_beside_a_long_request(tmp_path: Path, gate: Gate) -> None:
    """Each step of embeddings has at most 64 tokens while a turn is running, and the turn gets a token between two."""
    path = model_of(tmp_path, "tiny", "mean")
    async with running(path, speculation="off") as engine:
        gate.close(after=0)
        turn = asyncio.create_task(ask(engine, "Tell me more", max_tokens=200))
        await step_until(engine, gate, lambda stats: stats.tokens_generated > 0)
        before = await engine.stats()
        texts = tuple("one two three four five " * 20 for _ in range(40))
        work = asyncio.create_task(embed(engine, *texts))
        await until(engine, lambda stats: stats.gauges["embedding_texts_waiting"] > 0)
        gate.close(after=2 * (200 - before.tokens_generated))  # the rest of the turn, and as many of embeddings
        beside = await turn
        assert not work.done(), "the turn had to wait for all of the texts"
        after = await engine.stats()
        embedded = after.prompt_tokens_evaluated - before.prompt_tokens_evaluated
        assert 0 < embedded <= 64 * (200 + 2)
        assert beside.finished.usage.completion_tokens == 200
        gate.open()
        assert len((await work).vectors) == 40


async def test_owners_share_the_steps_of_embeddings(tmp_path: Path) -> None:
    """The short text of one owner does not wait for all texts of another."""
    async with running(model_of(tmp_path, "encoder", "mean")) as engine:
        many = asyncio.create_task(embed(engine, *(f"text {number} " * 30 for number in range(256)), owner="alice"))
        await until(engine, lambda stats: stats.gauges["embedding_texts_waiting"] > 0)
        await embed(engine, "short", owner="bob")
        assert not many.done()
        assert len((await many).vectors) == 256


def test_short_texts_do_not_hold_up_a_long_one(tmp_path: Path) -> None:
    """There is one long text at a time: another one that waits for it does not let others pass for ever."""
    options = WorkerOptions(threads=1, parallel=1, pool_tokens=256, context_tokens=1024)
    path = model_of(tmp_path, "tiny", "mean")
    runner = EmbeddingRunner(load(str(path), options, NativeLog(lambda *_: None), extra_buffers=False))

    def add(number: int, owner: str, length: int) -> None:
        runner.add(EmbeddingJob(number, (owner, "agent", ""), [np.ones(length, dtype=np.int32)]))

    answered: list[int] = []
    try:
        add(1, "alice", 500)
        add(2, "bob", 500)
        for number in range(3, 400):
            if 2 in answered:
                break
            add(number, "carol", 10)
            step = runner.next_step(beside_turns=True)
            assert step is not None
            assert step.tokens <= 64
            answered += [answer.number for answer in runner.compute(step)]
        assert {1, 2, 3} <= set(answered)
        assert runner.check_integrity() == []
    finally:
        runner.close()


async def test_a_client_that_leaves_stops_the_work(tmp_path: Path) -> None:
    async with running(model_of(tmp_path, "tiny", "mean", context=2048)) as engine:
        tasks = [asyncio.create_task(embed(engine, *("x1" * 1000 for _ in range(64))))]
        await until(engine, lambda stats: stats.gauges["embedding_texts_waiting"] > 0)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        stats = await engine.stats()
        assert stats.gauges["embedding_texts_waiting"] == 0
        assert stats.prompt_tokens_evaluated < 64 * 2000
        assert len((await embed(engine, "hello")).vectors) == 1


@pytest.mark.parametrize("shape", ["encoder", "tiny"])
async def test_requests_of_a_dead_worker_fail_and_the_next_one_answers(tmp_path: Path, shape: str) -> None:
    async with running(model_of(tmp_path, shape, "mean")) as engine:
        work = asyncio.create_task(embed(engine, *(f"text {number} " * 30 for number in range(512))))
        await until(engine, lambda stats: stats.gauges.get("embedding_texts_waiting", 0) > 0)
        pid = (await engine.stats()).worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashed, match="try again"):
            await work
        await until(engine, lambda stats: stats.state == "ready" and stats.restarts == 1)
        assert len((await embed(engine, "hello")).vectors) == 1


async def test_the_time_limit_of_turns_holds(tmp_path: Path) -> None:
    async with running(model_of(tmp_path, "tiny", "mean", context=2048)) as engine:
        texts = tuple("x1" * 1000 for _ in range(64))
        with pytest.raises(EngineError, match=r"longer than 0.05 seconds"):
            await embed(engine, *texts, deadline_seconds=0.05)


@pytest.mark.parametrize(("shape", "makes_texts"), [("encoder", False), ("tiny", True)])
async def test_a_file_says_what_it_can_before_it_is_loaded(tmp_path: Path, shape: str, makes_texts: bool) -> None:
    path = model_of(tmp_path, shape, "cls")
    header = await in_thread(lambda: probe.describe(path))
    assert (header.pooling, header.makes_texts) == ("cls", makes_texts)
    decoding = await asyncio.create_subprocess_exec(*probe.COMMAND, str(path))
    assert await decoding.wait() == 0
