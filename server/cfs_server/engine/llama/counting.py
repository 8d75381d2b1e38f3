"""Counts tokens for those who must keep within a context, in a thread of its own: a long text holds up no turn."""

import queue
from collections.abc import Callable

from cfs.errors import CfsError
from cfs.wire import Message, Settings
from cfs_server.engine.chat.templates import PromptBuilder
from cfs_server.engine.frames import AskTokens, Tokens
from cfs_server.engine.llama.vocabulary import Vocabulary


class Counter:
    """Answers questions in their order (`run_forever`)."""

    def __init__(self, vocabulary: Vocabulary, prompts: PromptBuilder, send: Callable[[Tokens], None]) -> None:
        self._vocabulary = vocabulary
        self._prompts = prompts
        self._send = send
        self._questions: queue.SimpleQueue[AskTokens] = queue.SimpleQueue()

    def put(self, question: AskTokens) -> None:
        """Take a question from the connection's thread."""
        self._questions.put(question)

    def run_forever(self) -> None:
        """Answer questions, one after the other."""
        while True:
            question = self._questions.get()
            self._send(self.answer(question))

    def answer(self, question: AskTokens) -> Tokens:
        """Count what is asked for; a conversation that the template refuses is told, and hurts nobody else."""
        try:
            counts = [self._count(text, special=False) for text in question.contents]
            return Tokens(question.number, counts, self._prompt(question))
        except CfsError as error:
            return Tokens(question.number, error=error.detail)
        except Exception as error:  # noqa: BLE001 - one bad question must not end the worker
            return Tokens(question.number, error=f"{type(error).__name__}: {error}")

    def _prompt(self, question: AskTokens) -> int | None:
        if question.messages is None:
            return None
        messages = [Message.model_validate(message) for message in question.messages]
        pieces = self._prompts.build(messages, Settings(), question.tools).pieces
        begin = self._vocabulary.begin is not None
        return begin + sum(self._count(piece.text, special=piece.trusted) for piece in pieces)

    def _count(self, text: str, *, special: bool) -> int:
        return len(self._vocabulary.tokenize(text, special=special))
