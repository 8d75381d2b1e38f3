"""Pending requests of the server to a worker, each with a number."""

import asyncio
import itertools
from collections.abc import Callable

from cfs.errors import Unavailable
from cfs_server.engine.contract.protocol import (
    AskStats,
    AskTokens,
    CountedTokens,
    Embed,
    Embedded,
    Stats,
    StopCounting,
    StopEmbedding,
)

ANSWER_SECONDS = 30.0
"""A worker that takes longer to answer hangs: the longest accepted text is counted within seconds."""


RETRY_AFTER = 10.0


SILENT = "the engine's worker process has not answered for {:g} seconds; try again later"


Question = AskStats | AskTokens | Embed


Answer = Stats | CountedTokens | Embedded


Stop = StopCounting | StopEmbedding


class Questions:
    """The open questions to one worker."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._open: dict[int, asyncio.Future[Answer | None]] = {}
        self._numbers = itertools.count(1)

    async def ask(
        self, make: Callable[[int], Question], send: Callable[[Question | Stop], None], *, seconds: float | None = None
    ) -> Answer | None:
        """Send a request and wait for its answer; None when the worker dies first.

        Raises `Unavailable` if no answer arrives in time: in `seconds`, or else in the time that all questions have.
        When the caller is cancelled, the worker stops working on it, and this returns only after that: callers that
        cancel again and again must not fill the worker's queue.
        """
        number = next(self._numbers)
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        question, seconds = make(number), seconds or self._seconds
        try:
            send(question)
            await asyncio.wait((future,), timeout=seconds)
        except asyncio.CancelledError:
            if not future.done() and (stop := _stop(question)) is not None:
                send(stop)
                await asyncio.wait((future,), timeout=self._seconds)
            raise
        finally:
            self._open.pop(number, None)
        if not future.done():
            if (stop := _stop(question)) is not None:
                send(stop)
            raise Unavailable(SILENT.format(seconds), retry_after=RETRY_AFTER)
        return future.result()

    def answered(self, answer: Answer) -> None:
        """Forward an answer; drop it if its caller has left."""
        future = self._open.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail_all(self) -> None:
        """Resolve all open requests with None: no answer will arrive."""
        for future in self._open.values():
            if not future.done():
                future.set_result(None)


def _stop(question: Question) -> Stop | None:
    match question:
        case AskTokens(number):
            return StopCounting(number)
        case Embed(number):
            return StopEmbedding(number)
        case AskStats():
            return None
