"""When a model is asked again: with growing pauses, or when the server said so."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import tenacity

from cfs.errors import CfsError, ContextTooLong, ServerError, Timeout, TooMany, Unavailable

_PASSING = (TooMany, Unavailable, Timeout, ServerError)


def is_passing(error: BaseException) -> bool:
    """Whether the same request may go well later: all that is the server's trouble, not the request's."""
    return isinstance(error, _PASSING) and not isinstance(error, ContextTooLong)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a model is asked before its error counts, and the pauses between in seconds (A7).

    Pauses are random up to a bound that begins at `first` and doubles up to `longest`. A server that names a time
    itself (`Retry-After`) is heeded up to `longest`; one that asks for more is not asked again. `sleep` is for tests.
    """

    tries: int = 3
    first: float = 1.0
    longest: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def attempts(self, note: Callable[[CfsError, float], None]) -> tenacity.AsyncRetrying:
        """Make the loop for one reply: `async for attempt in ...: with attempt: ...`.

        It does not pause: it tells each error and the pause due after it to `note`, and the next attempt begins with
        that pause. So whoever is inside the loop can say that there is one before it takes it.
        """
        grows = tenacity.wait_random_exponential(multiplier=self.first, max=self.longest)

        def again(error: BaseException) -> bool:
            return isinstance(error, CfsError) and is_passing(error) and (error.retry_after or 0) <= self.longest

        def pause(state: tenacity.RetryCallState) -> float:
            asked = _error_of(state).retry_after
            return grows(state) if asked is None else asked

        return tenacity.AsyncRetrying(
            sleep=_not_here,
            stop=tenacity.stop_after_attempt(self.tries),
            wait=pause,
            retry=tenacity.retry_if_exception(again),
            before_sleep=lambda state: note(_error_of(state), state.upcoming_sleep),
            reraise=True,
        )


async def _not_here(seconds: float) -> None:
    """Let the next attempt pause."""


def _error_of(state: tenacity.RetryCallState) -> CfsError:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, CfsError):
        raise TypeError("only errors of CFS are repeated")
    return error
