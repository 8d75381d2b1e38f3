"""Pending requests of the server to a worker, each with a number."""

import asyncio
import itertools
from collections.abc import Callable

from cfs.errors import Unavailable
from cfs_server.engine.contract.protocol import (
    AskStats,
    AskTokens,
    CountedTokens,
    Stats,
    StopCounting,
)

ANSWER_SECONDS = 30.0
"""A worker that takes longer to answer hangs: the longest accepted text is counted within seconds."""


RETRY_AFTER = 10.0


SILENT = "the engine's worker process has not answered for {:g} seconds; try again later"


Question = AskStats | AskTokens


Answer = Stats | CountedTokens


class Questions:
    """The open questions to one worker."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._open: dict[int, asyncio.Future[Answer | None]] = {}
        self._numbers = itertools.count(1)

    async def ask(
        self, make: Callable[[int], Question], send: Callable[[Question | StopCounting], None]
    ) -> Answer | None:
        """Send a request and wait for its answer; None when the worker dies first.

        Raises `Unavailable` if no answer arrives in time. When the caller is cancelled, the worker stops counting, and
        this returns only after that: callers that cancel again and again must not fill the worker's queue.
        """
        number = next(self._numbers)
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        question = make(number)
        try:
            send(question)
            await asyncio.wait((future,), timeout=self._seconds)
        except asyncio.CancelledError:
            if isinstance(question, AskTokens) and not future.done():
                send(StopCounting(number))
                await asyncio.wait((future,), timeout=self._seconds)
            raise
        finally:
            self._open.pop(number, None)
        if not future.done():
            if isinstance(question, AskTokens):
                send(StopCounting(number))
            raise Unavailable(SILENT.format(self._seconds), retry_after=RETRY_AFTER)
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
