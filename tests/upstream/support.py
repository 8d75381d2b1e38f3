"""Engines with a stub behind them, and what tests ask of both."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from blockbuster import blockbuster_ctx
from pydantic import SecretStr

from cfs.wire import Message, ToolCall
from cfs_server.engine.contract.interface import CallDelta, EngineStats, ModelInfo, UpstreamKind
from cfs_server.engine.upstream.engine import UpstreamEngine
from cfs_server.engine.upstream.failures import RetryPolicy
from cfs_server.engine.upstream.options import UpstreamOptions, sampling_of
from tests.engine.support import Answer
from tests.upstream.anthropic_stub import AnthropicStub
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, MODEL, Act, Stub, served

STUBS: dict[UpstreamKind, type[Stub]] = {"openai": OpenAIStub, "anthropic": AnthropicStub}


@dataclass
class Naps:
    """Stands in for sleeping between two tries: takes no time, and remembers how long it should have been."""

    taken: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        """Let others run."""
        self.taken.append(seconds)
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Pair:
    """An engine and the server behind it."""

    engine: UpstreamEngine
    stub: Stub
    naps: Naps

    async def settled(self) -> EngineStats:
        """Wait until the server streams nothing any more; what the engine says then."""
        await self.stub.until(lambda stub: stub.streaming == 0)
        return await self.engine.stats()


def options(url: str, kind: UpstreamKind, **changes: Any) -> UpstreamOptions:
    """Make options for a stub."""
    plain: dict[str, Any] = {"model": MODEL, "key": SecretStr(KEY), "sampling": sampling_of("", kind)}
    return UpstreamOptions(url, kind, **plain | changes)


@asynccontextmanager
async def pair(kind: UpstreamKind, *acts: Act, stub: Stub | None = None, **changes: Any) -> AsyncIterator[Pair]:
    """Run an engine with a stub that plays some acts. Nothing may block the loop, and no task may be left over."""
    stub = stub or STUBS[kind](*acts)
    naps = Naps()
    async with served(stub) as url:
        engine = UpstreamEngine(options(url, kind, **{"retries": RetryPolicy(sleep=naps)} | changes))
        with blockbuster_ctx():
            await engine.start()
            try:
                yield Pair(engine, stub, naps)
            finally:
                await engine.stop()
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("upstream")] == []


async def started(stub: Stub | None, kind: UpstreamKind, *, url: str = "", **changes: Any) -> ModelInfo:
    """Start an engine with a stub, or with an address without a server; what it says of its model."""
    async with contextlib.AsyncExitStack() as stack:
        if stub is not None:
            url = await stack.enter_async_context(served(stub))
        engine = UpstreamEngine(options(url, kind, **{"retries": RetryPolicy(sleep=Naps())} | changes))
        try:
            return await engine.start()
        finally:
            await engine.stop()


def calls_of(answer: Answer) -> list[ToolCall]:
    """Put the calls of an answer together."""
    pieces = [piece for delta in answer.deltas for piece in delta.calls]
    return [_call([piece for piece in pieces if piece.index == index]) for index in sorted({p.index for p in pieces})]


def _call(pieces: list[CallDelta]) -> ToolCall:
    first = pieces[0]
    assert first.id is not None
    assert first.name is not None
    assert all(piece.id is None and piece.name is None for piece in pieces[1:])
    arguments = "".join(piece.arguments for piece in pieces)
    return ToolCall.model_validate_json(f'{{"id": "{first.id}", "name": "{first.name}", "arguments": {arguments}}}')


def thinking_of(answer: Answer) -> str:
    """All that was thought."""
    return "".join(delta.thinking for delta in answer.deltas)


def said_by_model(answer: Answer) -> Message:
    """Make the message that a session would keep."""
    return Message(
        role="assistant",
        content=answer.text.strip(),
        tool_calls=tuple(calls_of(answer)),
        thinking=thinking_of(answer) or None,
    )


def result(call: ToolCall, content: str) -> Message:
    """Make the message with a tool's result."""
    return Message(role="tool", content=content, tool_call_id=call.id, name=call.name)


async def until_ready(engine: UpstreamEngine) -> None:
    """Let the loop run until the engine is ready; the test's time-out is the limit."""
    while not engine.ready:  # noqa: ASYNC110 - it looks at what has no event of its own
        await asyncio.sleep(0.001)
