"""Questions of agents as files: `cat` shows one, and a write of one of its choices answers it (A5, F5)."""

import errno
import os
import threading

from cfs import api
from cfs.contract.ids import file_name_of
from cfs.errors import Conflict, InvalidParameters, TooLarge, UnsupportedMedia
from cfs.state.question_text import question_text
from cfs.wire import Question
from cfs_fuse.cache import CachedSession
from cfs_fuse.handles import SEEN_SECONDS, BridgeContext
from cfs_fuse.paths import NAME_MAX, Attributes

_MOST_BYTES = 1_024
"""Longest answer, with white space around it."""


def session_names(context: BridgeContext) -> list[str]:
    """List the names of the directories: one for each session with open questions."""
    names = map(file_name_of, context.cache.asking())
    return [name for name in names if len(name.encode()) <= NAME_MAX]


def questions_of(context: BridgeContext, session: str) -> dict[str, Question]:
    """Return the open questions of a session by id: those that events have shown, or else the server's.

    Raises `NotFound` without the session.
    """
    cache, entry = context.cache, context.cache.get(session)
    with cache.lock:
        if len(entry.questions) == entry.open_questions:
            return dict(entry.questions)
        number = entry.event
    questions = {question.id: question for question in context.server.call(api.questions(session))}
    with cache.lock:
        if entry.event == number:
            entry.questions = dict(questions)
    return questions


def attributes_of(context: BridgeContext, session: str, question_id: str) -> Attributes:
    """Return the attributes of an open question; raises `OSError` (ENOENT)."""
    question = questions_of(context, session).get(question_id)
    if question is None:
        raise OSError(errno.ENOENT, "there is no open question of this id")
    size = len(question_text(session, question).encode())
    return context.attributes.file(size, question.asked_at)


class QuestionHandle:
    """An open question. Its text is that of when it was opened; a write of one of its choices answers it.

    An answer is sent as soon as it is whole, in the `write` itself where possible: programs report errors of `write`,
    and many ignore those of `close`.
    """

    def __init__(self, context: BridgeContext, session: str, question_id: str, flags: int) -> None:
        self._context = context
        self._entry: CachedSession = context.cache.get(session)
        self._session = session
        self._lock = threading.Lock()
        self._written = bytearray()
        self._sent: str | None = None
        self._question = self._open(question_id, writes=flags & os.O_ACCMODE != os.O_RDONLY)
        self._text = question_text(session, self._question).encode()

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:  # noqa: ARG002 - it never blocks
        """Return a part of the text."""
        return self._text[offset : offset + size]

    def write(self, data: bytes, offset: int) -> None:  # noqa: ARG002 - only the order counts
        """Take a part of the answer, and send the answer if nothing can follow that would make it another one.

        Raises `InvalidParameters`, `UnsupportedMedia`, `Forbidden`, or `OSError` (ESTALE) if it is not open any more.
        """
        with self._lock:
            self._written += data
            answer, is_line = self._answer(), self._written.endswith(b"\n")
            choices = [choice for choice in self._question.choices if choice.startswith(answer)]
            if (answer and not choices) or (answer and is_line and answer not in choices):
                self._written.clear()
                raise InvalidParameters(f"the answer is one of {', '.join(self._question.choices)}")
            if choices == [answer] or (is_line and answer in choices):
                self._send(answer)

    def commit(self) -> None:
        """Send an answer that is whole only at the end of the file."""
        with self._lock:
            if answer := self._answer():
                self._send(answer)

    def truncate(self, size: int) -> None:
        """Nothing is to be done: what is written is the answer."""

    def attributes(self) -> Attributes:
        """Describe the file."""
        return self._context.attributes.file(len(self._text), self._question.asked_at)

    def close(self) -> None:
        """Nothing is to be done."""

    def _open(self, question_id: str, *, writes: bool) -> Question:
        question = questions_of(self._context, self._session).get(question_id)
        if question is None:
            question = self._context.server.call(api.question(self._session, question_id))
            if question.state != "open":
                raise OSError(errno.ESTALE, _closed(question))
        if writes:
            self._context.require_writable(self._entry)
        return question

    def _answer(self) -> str:
        try:
            if len(self._written) > _MOST_BYTES:
                raise TooLarge(f"an answer has {_MOST_BYTES} bytes at most")
            return bytes(self._written).decode().strip()
        except (UnicodeDecodeError, TooLarge) as error:
            self._written.clear()
            if isinstance(error, TooLarge):
                raise
            raise UnsupportedMedia(f"an answer must be UTF-8: {error.reason}") from None

    def _send(self, answer: str) -> None:
        """Send the answer, once. What is written after it can only repeat it."""
        context, question = self._context, self._question
        self._written.clear()
        if self._sent == answer:
            return
        try:
            context.server.call(api.answer(self._session, question.id, answer))
        except Conflict as error:
            raise OSError(errno.ESTALE, error.detail) from None
        self._sent = answer
        with context.cache.lock:  # the caller sees its own change
            context.waiter.briefly(
                context.cache.moved(self._entry),
                lambda: self._entry.deleted or question.id not in self._entry.questions,
                SEEN_SECONDS,
            )


def _closed(question: Question) -> str:
    if question.answer is None:
        return "the question was withdrawn"
    return f"the question was answered already, by {question.by}: {question.answer}"
