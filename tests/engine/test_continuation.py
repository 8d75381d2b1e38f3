"""W8: a session goes on after its worker was killed as one whose worker was not."""

import asyncio
import os
import signal
from pathlib import Path

from cfs.wire import Message
from cfs_server.engine.contract.interface import Finished
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.engine.support import Answer, ask, running, until, user
from tests.pacing.gate import Gate

EXACT = {"flash_attention": False, "parked_bytes": 0, "idle_seconds": 0.0}
"""What rests is lost as soon as another turn computes: so both twins read their prompts anew, in the same batches."""

LETTERS = {"type": "string", "pattern": "^[a-z]{20,40}$"}


async def kill(engine: LlamaEngine) -> None:
    """Kill the worker, and wait for the next one."""
    pid = (await engine.stats()).worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(engine, lambda stats: stats.worker_pid not in (None, pid))


async def converse(engine: LlamaEngine, turns: int, *, crash: bool) -> list[Answer]:
    """Have a conversation, with another session's turn, and perhaps a crash, between any two turns.

    Its replies are random letters, which the tokenizer would cut otherwise; the last is a fork's.
    """
    history: list[Message] = []
    answers = []
    for number in range(turns):
        history.append(user(f"question {number}"))
        key = "fork" if number == turns - 1 else "session"
        answers.append(await ask(engine, history, key, max_tokens=60, json_schema=LETTERS))
        history.append(Message(role="assistant", content=answers[-1].text.strip()))
        if crash:
            await kill(engine)
        await ask(engine, "something else", "other", max_tokens=2, owner="other")
    return answers


async def test_the_continuation_after_a_crash_is_that_of_a_twin(tiny: Path) -> None:
    """To the letter and to the token, at each turn: replies are never cut into tokens anew."""
    twins: list[list[Answer]] = []
    for crash in (True, False):
        async with running(tiny, **EXACT) as engine:
            twins.append(await converse(engine, 4, crash=crash))
            assert (await engine.stats()).restarts == (4 if crash else 0)
    for killed, twin in zip(*twins, strict=True):
        assert killed.text == twin.text
        assert _tokens(killed.finished) == _tokens(twin.finished)
        assert twin.finished.usage.cached_tokens == 0


def _tokens(finished: Finished) -> tuple[int, int]:
    return finished.usage.prompt_tokens, finished.usage.completion_tokens


async def test_a_deleted_sessions_log_is_not_kept(tiny: Path, gate: Gate) -> None:
    """Nor when it is deleted while its turn runs."""
    async with running(tiny) as engine:
        await ask(engine, "hello", "stays", max_tokens=5)
        one = (await engine.stats()).gauges["token_log_bytes"]
        assert one > 0
        for key in ("a", "b"):
            await ask(engine, "hello", key, max_tokens=5)
        for key in ("a", "b"):
            engine.forget(key)
        gate.close()
        speaking = asyncio.create_task(ask(engine, "hello", "c", max_tokens=500))
        await until(engine, lambda stats: stats.running == 1)
        engine.forget("c")
        gate.open()
        await speaking
        assert (await engine.stats()).gauges["token_log_bytes"] == one
