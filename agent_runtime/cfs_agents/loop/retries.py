"""Retries of requests: a few after a fault, and during an outage for as long as the patience lasts."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import tenacity

from cfs.errors import (
    CfsError,
    EngineError,
    InvalidRequest,
    StorageFull,
    Timeout,
    TooMany,
    Unavailable,
    Unreachable,
    WorkerCrashed,
)

PATIENCE = 900.0
"""Default time in seconds to wait for the end of an outage; the commands wait without a limit."""

_SLOWEST = 10.0
"""Longest pause between two requests in an outage."""
_MOST_BREAKS = 30
"""How often one reply may break off after its beginning, or crash the worker: the prompt may be the cause."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

T = TypeVar("T")


def is_passing(error: BaseException) -> bool:
    """Return whether to make the same request again: the server failed, not the request.

    What the server has repeated itself is not repeated here, unless it is an outage.
    """
    return (isinstance(error, CfsError) and error.should_retry) or is_outage(error)


def is_outage(error: BaseException) -> bool:
    """Return whether an error means an outage: no connection, or a server, disk or engine that asks to wait."""
    if type(error) in (Unavailable, Unreachable, WorkerCrashed, Timeout):
        return True
    if not isinstance(error, TooMany | EngineError | StorageFull) or error.retry_after is None:
        return False
    return error.passes or isinstance(error, StorageFull)


def seconds_of(text: str) -> float:
    """Read a duration: `90s`, `15m`, `2h`, `0`, a number of seconds, or `forever`. Raises `InvalidRequest`."""
    if text.strip() == "forever":
        return math.inf
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"{text!r} is not a duration: write it like 90s, 15m, 2h or forever")
    return float(match[1]) * _UNITS[match[2]]


class Outages:
    """Counts requests that wait for the server. Calls `begins` when the first starts to wait, `ends` after the last."""

    def __init__(
        self, begins: Callable[[CfsError], None] | None = None, ends: Callable[[], None] | None = None
    ) -> None:
        self._begins = begins
        self._ends = ends
        self._waiting = 0
        self._since = 0.0
        self._total = 0.0

    @property
    def seconds(self) -> float:
        """Total waiting time so far, in seconds."""
        return self._total + (time.monotonic() - self._since if self._waiting else 0.0)

    def enter(self, error: CfsError) -> None:
        """Count a request that starts to wait."""
        self._waiting += 1
        if self._waiting == 1:
            self._since = time.monotonic()
            if self._begins is not None:
                self._begins(error)

    def leave(self, *, answered: bool) -> None:
        """Count a request that is answered or abandoned."""
        self._total = self.seconds
        self._since = time.monotonic()
        self._waiting -= 1
        if not self._waiting and answered and self._ends is not None:
            self._ends()


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is made before its error counts, and the pauses between, in seconds (A7).

    A fault of the server is tried `tries` times. After an error that an outage makes (`is_outage`) the request is made
    again until `patience` has passed since the first one; 0 leaves it at the tries. Pauses are random up to a bound
    that begins at `first` and doubles up to ten seconds. A server that names a time itself (`Retry-After`) is heeded up
    to `longest`, or to the end of the patience. `outages` is shared by all who use one server. `sleep` is for tests.
    """

    tries: int = 3
    first: float = 1.0
    longest: float = 60.0
    patience: float = PATIENCE
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    outages: Outages = field(default_factory=Outages)

    def request(self, forever: Callable[[], bool] = lambda: False) -> "RepeatedRequest":
        """Begin a request; while `forever` returns true, an outage has no time limit."""
        return RepeatedRequest(self, forever)

    async def call(self, action: Callable[[], Awaitable[T]], forever: Callable[[], bool] = lambda: False) -> T:
        """Repeat an action until it succeeds or its error is final."""
        with self.request(forever) as request:
            async for attempt in request.attempts():
                if request.pause is not None:
                    await self.sleep(request.pause)
                with attempt:
                    return await action()
        raise AssertionError("unreachable")  # pragma: no cover


class RepeatedRequest:
    """One request that may be made several times. Use it in `with`: it counts as waiting after its first outage."""

    def __init__(self, retries: Retries, forever: Callable[[], bool]) -> None:
        self.error: CfsError | None = None
        """The last error; None before the first."""
        self.pause: float | None = None
        """Seconds to wait before the next attempt; None before the first."""
        self._retries = retries
        self._forever = forever
        self._faults = self._failures = self._breaks = 0
        self._waited = 0.0
        self._since: float | None = None
        self._waiting = self._spoke = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over(answered=error is None)

    def spoke(self) -> None:
        """Note that the answer has begun: the outage is over."""
        self._spoke = True
        self._over(answered=True)

    def attempts(self) -> tenacity.AsyncRetrying:
        """Make the loop: `async for attempt in ...: pause; with attempt: ...`.

        It does not pause itself, so the body of the loop can report the pause before taking it.
        """
        grows = tenacity.wait_random_exponential(multiplier=self._retries.first, max=_SLOWEST)

        def pause(state: tenacity.RetryCallState) -> float:
            retry_after = _error_of(state).retry_after
            return grows(state) if retry_after is None else retry_after

        return tenacity.AsyncRetrying(
            sleep=_not_here,
            stop=self._is_over,
            wait=pause,
            retry=tenacity.retry_if_exception(is_passing),
            before_sleep=self._wait,
            reraise=True,
        )

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        """Count a failure, and say whether it is the last."""
        error, pause, now = _error_of(state), state.upcoming_sleep, time.monotonic()
        outage, soon = is_outage(error), pause <= self._retries.longest
        self._breaks += self._spoke or (isinstance(error, WorkerCrashed) and error.retry_after is None)
        if self._since is None or self._spoke:
            self._since, self._waited, self._spoke = now, 0.0, False
        self._failures += 1
        self._faults += not outage
        self._waited += pause
        if not outage:
            return self._faults >= self._retries.tries or not soon
        if self._failures < self._retries.tries and soon:
            return False
        late = max(self._waited, now + pause - self._since) > self._retries.patience
        return self._breaks > _MOST_BREAKS or (late and not self._forever())

    def _wait(self, state: tenacity.RetryCallState) -> None:
        self.error, self.pause = _error_of(state), state.upcoming_sleep
        if not self._waiting and is_outage(self.error):
            self._waiting = True
            self._retries.outages.enter(self.error)

    def _over(self, *, answered: bool) -> None:
        if self._waiting:
            self._waiting = False
            self._retries.outages.leave(answered=answered)


async def _not_here(seconds: float) -> None:
    """Do not pause: the next attempt does."""


def _error_of(state: tenacity.RetryCallState) -> CfsError:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, CfsError):
        raise TypeError("only errors of CFS are repeated")
    return error
