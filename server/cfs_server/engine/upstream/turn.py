"""One turn on its way through an upstream: what came of it so far, and what it cost."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cfs.errors import EngineError
from cfs.wire import FinishReason, Usage
from cfs_server.engine.interface import Delta, GenerationRequest
from cfs_server.engine.upstream.dialect import Spent


@dataclass(eq=False, slots=True)
class Turn:
    """Collects what is new until its reader takes it; a slow reader gets longer pieces, never a long queue."""

    request: GenerationRequest
    clock: Callable[[], float] = time.monotonic
    task: asyncio.Task[None] | None = None
    reason: FinishReason | None = None
    error: EngineError | None = None
    spent: Spent = field(default_factory=Spent)
    _submitted: float = 0.0
    _started: float | None = None
    _first: float | None = None
    _ended: float | None = None
    _chunks: int = 0
    _new: Delta | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._submitted = self.clock()

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.reason is not None or self.error is not None

    @property
    def silent(self) -> bool:
        """Whether nothing has come yet, so that its request may be sent again."""
        return self._first is None

    def start(self) -> None:
        """It has got its place."""
        self._started = self.clock()

    def add(self, delta: Delta) -> None:
        """Something new."""
        if self._first is None:
            self._first = self.clock()
        self._chunks += delta.tokens
        self._new = delta if self._new is None else _joined(self._new, delta)
        self._changed.set()

    def end(self, reason: FinishReason) -> None:
        """It is over; the first word about that counts."""
        if not self.over:
            self.reason, self._ended = reason, self.clock()
        self._changed.set()

    def fail(self, error: EngineError) -> None:
        """It is over, without an answer."""
        if not self.over:
            self.error, self._ended = error, self.clock()
        self._changed.set()

    async def next(self) -> Delta | None:
        """Wait for something new; `None` when it is over and everything was taken."""
        while self._new is None and not self.over:
            self._changed.clear()
            await self._changed.wait()
        new, self._new = self._new, None
        return new

    def usage(self) -> Usage:
        """What it cost: the upstream's own count, or as many tokens as pieces came where it does not count."""
        now = self._ended or self.clock()
        speaking = now - (self._first or now)
        completion = self._chunks if self.spent.completion is None else self.spent.completion
        return Usage(
            prompt_tokens=self.spent.prompt or 0,
            cached_tokens=self.spent.cached,
            completion_tokens=completion,
            queue_seconds=round((self._started or now) - self._submitted, 6),
            first_token_seconds=round((self._first or now) - self._submitted, 6),
            total_seconds=round(now - self._submitted, 6),
            tokens_per_second=round(completion / speaking, 3) if completion > 1 and speaking > 0 else 0.0,
        )


def _joined(before: Delta, new: Delta) -> Delta:
    return Delta(
        before.text + new.text,
        before.tokens + new.tokens,
        before.thinking + new.thinking,
        before.calls + new.calls,
    )
