"""Counts tokens for those who must keep within a context, in a thread of its own: a long text holds up no turn.

Questions take turns, a text each, so that a short one need not wait for all that were asked before it.
"""

import queue
from collections import OrderedDict
from collections.abc import Callable, Generator

from cfs.errors import CfsError
from cfs.wire import Message, Settings
from cfs_server.engine.chat.templates import PromptBuilder
from cfs_server.engine.frames import AskTokens, CountedTokens, StopCounting
from cfs_server.engine.llama.vocabulary import Vocabulary

_Counting = Generator[None, None, CountedTokens]


class Counter:
    """Answers questions (`run_forever`)."""

    def __init__(self, vocabulary: Vocabulary, prompts: PromptBuilder, send: Callable[[CountedTokens], None]) -> None:
        self._vocabulary = vocabulary
        self._prompts = prompts
        self._send = send
        self._orders: queue.SimpleQueue[AskTokens | StopCounting] = queue.SimpleQueue()
        self._open: OrderedDict[int, _Counting] = OrderedDict()

    def put(self, order: AskTokens | StopCounting) -> None:
        """Take a question from the connection's thread, or that its asker is gone."""
        self._orders.put(order)

    def run_forever(self) -> None:
        """Answer questions, a text of each at a time."""
        while True:
            self.step()

    def step(self) -> None:
        """Take in what has come, or wait for it, and count one text."""
        while not self._orders.empty() or not self._open:
            self._take(self._orders.get())
        number, work = self._open.popitem(last=False)
        try:
            next(work)
            self._open[number] = work
        except StopIteration as end:
            self._send(end.value)

    def answer(self, question: AskTokens) -> CountedTokens:
        """Count all that is asked for at once."""
        work = self._work(question)
        while True:
            try:
                next(work)
            except StopIteration as end:
                counted: CountedTokens = end.value
                return counted

    def _take(self, order: AskTokens | StopCounting) -> None:
        if isinstance(order, AskTokens):
            self._open[order.number] = self._work(order)
        elif self._open.pop(order.number, None) is not None:
            self._send(CountedTokens(order.number, error="nobody waits for it"))

    def _work(self, question: AskTokens) -> _Counting:
        """Count what is asked for; a conversation that the template refuses is told, and hurts nobody else."""
        counts: list[int] = []
        try:
            for text in question.contents:
                counts.append(self._count(text, special=False))
                yield
            return CountedTokens(question.number, counts, (yield from self._prompt(question)))
        except CfsError as error:
            return CountedTokens(question.number, error=error.detail)
        except Exception as error:  # noqa: BLE001 - one bad question must not end the worker
            return CountedTokens(question.number, error=f"{type(error).__name__}: {error}")

    def _prompt(self, question: AskTokens) -> Generator[None, None, int | None]:
        if question.messages is None:
            return None
        messages = [Message.model_validate(message) for message in question.messages]
        pieces = self._prompts.build(messages, Settings(), question.tools).pieces
        total = int(self._vocabulary.begin is not None)
        for piece in pieces:
            yield
            total += self._count(piece.text, special=piece.trusted)
        return total

    def _count(self, text: str, *, special: bool) -> int:
        return len(self._vocabulary.tokenize(text, special=special))
