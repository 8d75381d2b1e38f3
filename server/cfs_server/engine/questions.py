"""Questions to the worker, each with a number, until they are answered or nobody is there any more to do it."""

import asyncio
import itertools
from collections.abc import Callable

from cfs.errors import Unavailable
from cfs_server.engine.frames import AskStats, AskTokens, CountedTokens, Stats, StopCounting

ANSWER_SECONDS = 30.0
"""A worker that has not answered after so long hangs: the longest text that is taken is counted in seconds."""
RETRY_AFTER = 10.0
SILENT = "the engine's worker process has not answered for {:g} seconds; ask again later"
Question = AskStats | AskTokens
Answer = Stats | CountedTokens


class Questions:
    """Those that are open."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._open: dict[int, asyncio.Future[Answer | None]] = {}
        self._numbers = itertools.count(1)

    async def ask(
        self, make: Callable[[int], Question], send: Callable[[Question | StopCounting], None]
    ) -> Answer | None:
        """Send a question and wait for its answer; None when the worker dies before it has given one.

        Raises `Unavailable` when no answer comes in time. A worker need not count tokens that nobody waits for: it is
        told, and this is over when it has stopped, so that whoever leaves again and again does not fill its queue.
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
        """Take an answer; one that nobody waits for any more is dropped."""
        future = self._open.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def nobody_answers(self) -> None:
        """Let everybody who waits know that no answer will come."""
        for future in self._open.values():
            if not future.done():
                future.set_result(None)
