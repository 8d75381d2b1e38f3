"""When a request is sent again: with growing pauses, or when the upstream said so."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import tenacity

from cfs_server.engine.upstream.failures import Failure


@dataclass(frozen=True, slots=True)
class Retries:
    """How often to send a request again, and the pauses before that in seconds.

    Pauses are random up to a bound that begins at `first` and doubles up to `longest`. An upstream that names a time
    itself (`Retry-After`) is heeded up to `longest`; who asks for more is not asked again. `sleep` is for tests.
    """

    most: int = 3
    first: float = 0.5
    longest: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def attempts(
        self, may_repeat: Callable[[], bool], note: Callable[[Failure, float], None]
    ) -> tenacity.AsyncRetrying:
        """Make the loop for one turn: `async for attempt in ...: with attempt: ...`.

        A `Failure` that is for good, and each after `may_repeat` says no, comes out of it; others are told to `note`.
        """
        grows = tenacity.wait_random_exponential(multiplier=self.first, max=self.longest)

        def again(error: BaseException) -> bool:
            return isinstance(error, Failure) and error.repeat and (error.after or 0) <= self.longest and may_repeat()

        def pause(state: tenacity.RetryCallState) -> float:
            failure = _failure_of(state)
            return grows(state) if failure.after is None else failure.after

        return tenacity.AsyncRetrying(
            sleep=self.sleep,
            stop=tenacity.stop_after_attempt(self.most + 1),
            wait=pause,
            retry=tenacity.retry_if_exception(again),
            before_sleep=lambda state: note(_failure_of(state), state.upcoming_sleep),
            reraise=True,
        )


def _failure_of(state: tenacity.RetryCallState) -> Failure:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, Failure):
        raise TypeError("only failures are repeated")
    return error
