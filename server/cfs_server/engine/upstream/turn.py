"""One turn at an upstream: its text so far, and its cost."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cfs.completions.estimates import estimate_prompt, estimate_tokens, tokens_of_size
from cfs.errors import EngineError
from cfs.wire import FinishReason, Usage
from cfs_server.engine.contract.interface import (
    Delta,
    GenerationRequest,
)
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.protocol import UpstreamUsage


@dataclass(eq=False, slots=True)
class UpstreamTurn:
    """Collects new output until its reader takes it; a slow reader gets longer pieces, never a long queue."""

    request: GenerationRequest
    clock: Callable[[], float] = time.monotonic
    task: asyncio.Task[None] | None = None
    reason: FinishReason | None = None
    stop: str = ""
    error: EngineError | None = None
    failure: Failure | None = None
    spent: UpstreamUsage = field(default_factory=UpstreamUsage)
    size: int = 0
    warnings: tuple[str, ...] = ()
    _submitted: float = 0.0
    _started: float | None = None
    _first: float | None = None
    end_tasks: float | None = None
    _new: deque[Delta] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._submitted = self.clock()

    @property
    def over(self) -> bool:
        """Whether the turn has ended."""
        return self.reason is not None or self.error is not None

    @property
    def silent(self) -> bool:
        """Whether no output has arrived yet, so that its request may be sent again."""
        return self._first is None

    def start(self) -> None:
        """It has got its place."""
        self._started = self.clock()

    def add(self, delta: Delta) -> None:
        """Something new."""
        if self._first is None:
            self._first = self.clock()
        if self._new and _continues(self._new[-1], delta):
            self._new[-1] = _joined(self._new[-1], delta)
        else:
            self._new.append(delta)
        self._changed.set()

    def end(self, reason: FinishReason) -> None:
        """It is over; the first word about that counts."""
        if not self.over:
            self.reason, self.end_tasks = reason, self.clock()
        self._changed.set()

    def fail(self, error: EngineError) -> None:
        """It is over, without an answer."""
        if not self.over:
            self.error, self.end_tasks = error, self.clock()
        self._changed.set()

    async def next(self) -> Delta | None:
        """Wait for something new; `None` when it is over and everything was taken."""
        while not self._new and not self.over:
            self._changed.clear()
            await self._changed.wait()
        return self._new.popleft() if self._new else None

    def usage(self) -> Usage:
        """The usage: the upstream's own count, or an estimate. Some servers count nothing, and some count zero."""
        now = self.end_tasks or self.clock()
        speaking = now - (self._first or now)
        completion = self.spent.completion or tokens_of_size(self.size)
        return Usage(
            prompt_tokens=self.spent.prompt or self._estimated_prompt(),
            cached_tokens=self.spent.cached,
            completion_tokens=completion,
            queue_seconds=round((self._started or now) - self._submitted, 6),
            first_token_seconds=round((self._first or now) - self._submitted, 6),
            total_seconds=round(now - self._submitted, 6),
            tokens_per_second=round(completion / speaking, 3) if completion > 1 and speaking > 0 else 0.0,
        )

    def _estimated_prompt(self) -> int:
        if self._first is None:
            return 0
        request = self.request
        return estimate_tokens(request.settings.system or "") + estimate_prompt(request.messages, request.options.tools)


def _continues(before: Delta, new: Delta) -> bool:
    """Whether a piece can be joined to the one before it, so that the order of text, thinking and calls stays."""
    return not (before.calls and (new.text or new.thinking)) and not (before.text and new.thinking)


def _joined(before: Delta, new: Delta) -> Delta:
    return Delta(
        before.text + new.text,
        before.tokens + new.tokens,
        before.thinking + new.thinking,
        before.calls + new.calls,
    )


async def end_tasks(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait for their end.

    The caller may be cancelled, too, and by anyio repeatedly. This must not reach the tasks: a task that is cancelled
    while it closes its connection leaves the connection open for good.
    """
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
