"""One turn between the worker's frames and the reader of `generate()`."""

import asyncio
import time
from dataclasses import dataclass, field

from cfs import errors
from cfs.errors import EngineError
from cfs.wire import FinishReason, Usage
from cfs_server.engine.chat.replies import ReplyReader
from cfs_server.engine.frames import Ended, Generate, Started, Text
from cfs_server.engine.interface import Delta, GenerationRequest


@dataclass(eq=False, slots=True)
class TurnStream:
    """Collects what a turn produced until its reader takes it; a slow reader gets longer pieces, never a long queue."""

    order: Generate
    reader: ReplyReader = field(default_factory=ReplyReader)
    reason: FinishReason | None = None
    error: EngineError | None = None
    produced: bool = False
    cancelled: bool = False
    replays: int = 0
    _texts: list[str] = field(default_factory=list)
    _tokens: int = 0
    _prompt_tokens: int = 0
    _cached_tokens: int = 0
    _completion_tokens: int = 0
    _submitted: float = field(default_factory=time.monotonic)
    _started: float | None = None
    _first: float | None = None
    _first_tokens: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, request: GenerationRequest) -> "TurnStream":
        """Begin a turn."""
        order = Generate(
            id=request.id,
            cache_key=request.cache_key,
            messages=[message.model_dump(mode="json", exclude_defaults=True) for message in request.messages],
            settings=request.settings.model_dump(mode="json"),
            json_schema=request.json_schema,
            tools=list(request.tools),
            owner=request.owner,
            account=request.account or request.cache_key,
            kind=request.kind,
        )
        return cls(order, ReplyReader(request.tools, most_calls=None if request.parallel_calls else 1))

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.reason is not None or self.error is not None

    def start(self, started: Started) -> None:
        """The turn left the worker's queue."""
        self._started = time.monotonic()
        self._prompt_tokens = started.prompt_tokens
        self._cached_tokens = started.cached_tokens
        if started.thinking:
            self.reader.open()

    def requeue(self) -> None:
        """The worker is gone; this turn begins again with the next one."""
        self.replays += self._started is not None
        self._started = None

    def add(self, text: Text) -> None:
        """New text."""
        if self._first is None:
            self._first, self._first_tokens = time.monotonic(), text.tokens
        self.produced = True
        self._texts.append(text.text)
        self._tokens += text.tokens
        self._changed.set()

    def finish(self, ended: Ended) -> None:
        """The worker says that the turn is over, and how."""
        if ended.kind:
            kind = getattr(errors, ended.kind, EngineError)
            self.fail(kind(ended.error) if issubclass(kind, EngineError) else EngineError(ended.error))
        else:
            self.end(ended.reason, ended.completion_tokens)

    def end(self, reason: FinishReason, completion_tokens: int = 0) -> None:
        """The turn is over."""
        self.reason = reason
        self._completion_tokens = completion_tokens
        self._changed.set()

    def fail(self, error: EngineError) -> None:
        """The turn is over, without an answer."""
        self.error = error
        self._changed.set()

    async def next(self) -> Delta | None:
        """Wait for what is new; `None` when the turn is over and everything was taken."""
        while True:
            while not self._texts and not self.over:
                self._changed.clear()
                await self._changed.wait()
            if not self._texts:
                return None if self.error else self.reader.finish()
            delta = self.reader.feed("".join(self._texts), self._tokens)
            self._texts.clear()
            self._tokens = 0
            if delta is not None:
                return delta

    def usage(self) -> Usage:
        """What the turn cost, seen from whoever waits for it."""
        now = time.monotonic()
        rest, speaking = self._completion_tokens - self._first_tokens, now - (self._first or now)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            queue_seconds=round((self._started or now) - self._submitted, 6),
            first_token_seconds=round((self._first or now) - self._submitted, 6),
            total_seconds=round(now - self._submitted, 6),
            tokens_per_second=round(rest / speaking, 3) if self._first and rest > 0 and speaking > 0 else 0.0,
        )
