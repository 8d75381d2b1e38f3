"""The stream of one turn, from the worker's frames to the reader of `generate()`."""

import asyncio
import time
from dataclasses import dataclass, field, replace

from cfs import errors
from cfs.errors import EngineError, WorkerCrashed
from cfs.wire import FinishReason, TokenAlternative, TokenLogprob, Usage
from cfs_server.engine.chat.reply_parser import ReplyReader
from cfs_server.engine.contract.interface import Delta, GenerationRequest, WorkerLost
from cfs_server.engine.contract.protocol import Ended, Rank, TextDelta, TurnDequeued

NOTHING = Delta("", 0)
REPLAYS = 1
"""How often a turn begins again that was running in a crash: it may have caused the crash."""


@dataclass(frozen=True, slots=True)
class BackpressureLimits:
    """How much output of a turn may wait for its reader before the turn is paused."""

    tokens: int = 4096
    characters: int = 64 << 10


@dataclass(eq=False, slots=True)
class TurnStream:
    """Collects the output of a turn until its reader takes it; a slow reader gets longer pieces, not a longer queue."""

    request: GenerationRequest
    reason: FinishReason | None = None
    stop: str = ""
    error: EngineError | None = None
    cancelled: bool = False
    _replays: int = field(init=False)
    _passed_on: bool = False
    _texts: list[str] = field(default_factory=list)
    _ranks: list[list[Rank]] = field(default_factory=list)
    _tokens: int = 0
    _characters: int = 0
    _paused: bool = False
    _prompt_tokens: int = 0
    _cached_tokens: int = 0
    _completion_tokens: int = 0
    _accepted: int = 0
    _refused: int = 0
    _submitted: float = field(default_factory=time.monotonic)
    _started: float | None = None
    _first: float | None = None
    _first_tokens: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    reader: ReplyReader = field(init=False)

    def __post_init__(self) -> None:
        self._replays = self.request.times - 1
        self._read_from_start()

    def _read_from_start(self) -> None:
        options = self.request.options
        self.reader = ReplyReader(options.tools, most_calls=None if options.parallel_calls else 1)

    @property
    def over(self) -> bool:
        """Whether the stream has ended."""
        return self.reason is not None or self.error is not None

    @property
    def age(self) -> float:
        """Seconds since the turn was handed over."""
        return time.monotonic() - self._submitted

    def start(self, started: TurnDequeued) -> None:
        """Note that the turn left the worker's queue."""
        self._started = time.monotonic()
        self._prompt_tokens = started.prompt_tokens
        self._cached_tokens = started.cached_tokens
        if started.thinking:
            self.reader.open()

    def orphan(self, crash: str) -> None:
        """Handle the end of the worker: a turn begins again with the next one, if it is its first crash.

        If its reader has text, that is lost, so the reader has to begin again.
        """
        if self.over:
            return
        self._replays += self._started is not None
        self._started = None
        if self.cancelled:
            self.end("cancelled")
        elif self._replays > REPLAYS:
            self.fail(WorkerCrashed(crash))
        elif self._passed_on:
            self.fail(WorkerLost(crash))
        else:
            self._drop()
            self._first, self._paused = None, False
            self._read_from_start()

    def _drop(self) -> None:
        """Drop the text that its reader has not taken."""
        self._texts.clear()
        self._ranks.clear()
        self._tokens = self._characters = 0

    def add(self, text: TextDelta) -> None:
        """Add new text."""
        if self._first is None:
            self._first, self._first_tokens = time.monotonic(), text.tokens
        self._texts.append(text.text)
        self._tokens += text.tokens
        self._ranks += text.logprobs or ()
        self._characters += len(text.text)
        self._changed.set()

    def pauses(self, limits: BackpressureLimits) -> bool:
        """Return true once when the worker should pause this turn: more waits for its reader than the limits allow."""
        much = self._tokens > limits.tokens or self._characters > limits.characters
        if self._paused or self.over or not much:
            return False
        self._paused = True
        return True

    def resumes(self) -> bool:
        """Return true once when the worker should resume this turn: the reader has taken everything."""
        paused, self._paused = self._paused, False
        return paused and not self.over

    def finish(self, ended: Ended) -> None:
        """Note that the worker ended the turn, and how."""
        if ended.kind:
            kind = getattr(errors, ended.kind, EngineError)
            if kind is errors.ContextTooLong:
                self.fail(errors.ContextTooLong(ended.error, fits=ended.fits, leaving=ended.leaving))
            else:
                self.fail(kind(ended.error) if issubclass(kind, EngineError) else EngineError(ended.error))
        else:
            self.stop = ended.stop
            self._accepted, self._refused = ended.accepted, ended.refused
            self.end(ended.reason, ended.completion_tokens)

    def end(self, reason: FinishReason, completion_tokens: int = 0) -> None:
        """End the turn."""
        self.reason = reason
        self._completion_tokens = completion_tokens
        self._changed.set()

    def fail(self, error: EngineError) -> None:
        """End the turn with an error."""
        self.error = error
        self._changed.set()

    async def next(self) -> Delta | None:
        """Wait for new output, which may be empty while it is ambiguous; `None` when the turn is over."""
        while not self._texts and not self.over:
            self._changed.clear()
            await self._changed.wait()
        if not self._texts:
            return None if self.error else self.reader.finish()
        delta = self.reader.feed("".join(self._texts), self._tokens) or NOTHING
        if self._ranks:
            delta = replace(delta, logprobs=tuple(map(_logprob, self._ranks)))
        self._passed_on = self._passed_on or delta is not NOTHING
        self._drop()
        return delta

    def usage(self) -> Usage:
        """Return the cost of the turn, as its reader sees it."""
        now = time.monotonic()
        rest, speaking = self._completion_tokens - self._first_tokens, now - (self._first or now)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            accepted_prediction_tokens=self._accepted,
            rejected_prediction_tokens=self._refused,
            queue_seconds=round((self._started or now) - self._submitted, 6),
            first_token_seconds=round((self._first or now) - self._submitted, 6),
            total_seconds=round(now - self._submitted, 6),
            tokens_per_second=round(rest / speaking, 3) if self._first and rest > 0 and speaking > 0 else 0.0,
        )


def _logprob(ranks: list[Rank]) -> TokenLogprob:
    chosen, *others = map(_alternative, ranks)
    return TokenLogprob(**dict(chosen), top=tuple(others))


def _alternative(rank: Rank) -> TokenAlternative:
    data = rank.token.encode("latin-1")
    return TokenAlternative(token=data.decode(errors="replace"), bytes=tuple(data), logprob=rank.logprob)
