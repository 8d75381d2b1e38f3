"""Short words for what engine tests do all the time."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cfs.wire import Message, Settings
from cfs_server.engine.contract.fairness import Fairness
from cfs_server.engine.contract.interface import Delta, Engine, EngineStats, Finished, GenerationRequest
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.contract.reply_options import REPLY_OPTIONS, ReplyOptions
from cfs_server.engine.host.streams import BackpressureLimits
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.pacing.gate import Gate

OUTER = (
    "owner",
    "account",
    "family",
    "kind",
    "deadline_seconds",
)
"""What of a request is no setting."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that one generation yielded."""

    deltas: tuple[Delta, ...]
    finished: Finished

    @property
    def text(self) -> str:
        """The whole reply."""
        return "".join(delta.text for delta in self.deltas)


def user(content: str) -> Message:
    """Make a user's message."""
    return Message(role="user", content=content)


def request(content: str | Sequence[Message], key: str | None = None, **changes: Any) -> GenerationRequest:
    """Make a request, greedy unless `temperature` says otherwise; other keywords are settings."""
    number = next(_numbers)
    messages = (user(content),) if isinstance(content, str) else tuple(content)
    outer = {name: changes.pop(name) for name in OUTER if name in changes}
    options = ReplyOptions(**{name: changes.pop(name) for name in REPLY_OPTIONS if name in changes})
    settings = Settings(**{"temperature": 0.0, "max_tokens": 24} | changes)
    return GenerationRequest(f"turn-{number}", key or f"session-{number}", messages, settings, options, **outer)


async def collect(engine: Engine, wanted: GenerationRequest) -> Answer:
    """Run a generation to its end."""
    return answer_of([item async for item in engine.generate(wanted)])


def answer_of(items: Sequence[Delta | Finished]) -> Answer:
    """Put together what a generation yielded."""
    finished = items[-1]
    assert isinstance(finished, Finished)
    deltas = tuple(item for item in items[:-1] if isinstance(item, Delta))
    assert len(deltas) == len(items) - 1
    return Answer(deltas, finished)


async def ask(engine: Engine, content: str | Sequence[Message], key: str | None = None, **changes: Any) -> Answer:
    """Make a request and run it to its end."""
    return await collect(engine, request(content, key, **changes))


async def until(engine: Engine, holds: Callable[[EngineStats], bool]) -> None:
    """Look at the engine's stats until something holds."""
    while True:
        if holds(await engine.stats()):
            return
        await asyncio.sleep(0)


async def step_until(engine: Engine, gate: Gate, holds: Callable[[EngineStats], bool]) -> None:
    """Let an engine behind a closed gate make one step after the other until something holds."""
    while not holds(await engine.stats()):
        gate.close(after=1)


@asynccontextmanager
async def running(model: Path | None, **options: Any) -> AsyncIterator[LlamaEngine]:
    """Run an engine, with options of the worker or `backpressure`; at the end nothing may be wrong inside of it.

    Unless an option says otherwise, it guesses nothing: a step has one token of each stream.
    """
    backpressure: BackpressureLimits | None = options.pop("backpressure", None)
    steady: dict[str, Any] = {"threads": 1, "speculation": "off"}
    engine = LlamaEngine(str(model) if model else None, WorkerOptions(**steady | options), backpressure=backpressure)
    await engine.start()
    try:
        yield engine
        assert await engine.check_integrity() == []
    finally:
        await engine.stop()


def looks_at_shares(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | int, ...]]:
    """Record each look at what an owner, a kind of work or an account has had."""
    looks: list[tuple[str | int, ...]] = []
    had = Fairness.had

    def recorded(fairness: Fairness, level: tuple[str | int, ...]) -> float:
        looks.append(level)
        return had(fairness, level)

    monkeypatch.setattr(Fairness, "had", recorded)
    return looks
