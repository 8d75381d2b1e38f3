"""`/dav/questions`: the open questions of agents as files. A PUT of one of its choices answers a question (A5, W3)."""

import io
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from cfs.contract.ids import check_id, file_name_of, id_of_file_name
from cfs.errors import CfsError, Forbidden, InvalidIdentifier, InvalidParameters, NotFound, UnsupportedMedia
from cfs.state.question_text import question_text
from cfs_server.dav.fixed import FixedTree
from cfs_server.domain.loop_bridge import LoopBridge
from cfs_server.domain.questions import Question, QuestionState, already_closed, open_questions
from cfs_server.domain.rights import Right
from cfs_server.http.caller import Caller
from cfs_server.http.representations import question as represented
from cfs_webdav import Conditions, Resource
from cfs_webdav.tree import require

MEDIA_TYPE = "text/plain; charset=utf-8"
_MOST_BYTES = 1_024
"""Longest answer, with white space around it."""


@dataclass(frozen=True, slots=True)
class QuestionsRoot:
    """The collection of the sessions with open questions."""


@dataclass(frozen=True, slots=True)
class SessionQuestions:
    """The collection of the open questions of one session."""

    session: str


@dataclass(frozen=True, slots=True)
class QuestionPath:
    """A question."""

    session: str
    id: str


def parse_path(path: str) -> QuestionsRoot | SessionQuestions | QuestionPath | None:
    """Parse a path of the mount, where a sub-session is called `main%2Fcoder`; None if nothing can exist there."""
    match path.strip("/").split("/"):
        case [""]:
            return QuestionsRoot()
        case [name] if (session := _session_of(name)) is not None:
            return SessionQuestions(session)
        case [name, question] if (session := _session_of(name)) is not None:
            return QuestionPath(session, question)
    return None


def _session_of(name: str) -> str | None:
    with suppress(InvalidIdentifier):
        return check_id(id_of_file_name(name) or "")
    return None


class QuestionTree(FixedTree):
    """The open questions that one caller may read, for one request. Who may answer them may write their files."""

    def __init__(self, caller: Caller, on_loop: LoopBridge) -> None:
        self._caller = caller
        self._gate = caller.sessions
        self._on_loop = on_loop

    def refused(self, path: str) -> CfsError:
        """Return why nothing can be changed at a path."""
        if parse_path(path) is None:
            return NotFound(f"nothing can be at {path!r} in /dav/questions")
        return Forbidden("questions are only answered: write one of its choices to the file of a question")

    def check(self, path: str) -> None:
        """Raise `NotGranted` if the caller has no rights at or below the session."""
        match parse_path(path):
            case SessionQuestions(session) | QuestionPath(session):
                self._gate.require_any(session)

    def look(self, path: str) -> Resource | None:
        """Return the entry of an open question or a collection."""
        return self._on_loop(partial(self._look, path))

    def members(self, path: str) -> Iterable[Resource]:
        """Return the entries directly in a collection."""
        return self._on_loop(partial(self._members, path))

    def text(self, path: str) -> tuple[str, str] | None:
        """Return the text of an open question and its id; None for a collection. Runs on the event loop.

        Raises `NotFound`, `NotGranted` or `Forbidden`.
        """
        target = parse_path(path)
        if not isinstance(target, QuestionPath):
            return None
        question = self._gate.get(target.session, "read_binary").question(target.id)
        if question.state is not QuestionState.OPEN:
            raise NotFound(already_closed(question).detail)
        return _text(target.session, question), question.id

    def open(self, path: str) -> BinaryIO:
        """Open the text of a question."""
        content = self._on_loop(partial(self.text, path))
        if content is None:
            raise self.refused(path)
        return io.BytesIO(content[0].encode())

    def require_write(self, path: str) -> None:
        """Raise the error of an answer that the caller may not give, or that comes too late."""
        target = parse_path(path)
        if not isinstance(target, QuestionPath):
            raise self.refused(path)
        question = self._caller.question_to_answer(target.session, target.id)
        if question.state is not QuestionState.OPEN:
            raise already_closed(question)

    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str | None:
        """Answer a question with the word of a body.

        Raises `Conflict` if it is not open any more, `InvalidParameters` or `UnsupportedMedia` for what is no answer.
        """
        target = parse_path(path)
        if not isinstance(target, QuestionPath):
            raise self.refused(path)
        size = body.seek(0, os.SEEK_END)
        body.seek(0)
        try:
            answer = body.read(_MOST_BYTES).decode().strip()
        except UnicodeDecodeError as error:
            raise UnsupportedMedia(f"an answer must be UTF-8: {error.reason}") from None
        if not answer or size > _MOST_BYTES:
            raise InvalidParameters("the body is one of the choices of the question, such as: allow")
        self._on_loop(partial(self._answer, target, answer, conditions))
        return None

    def make(self, path: str) -> None:
        """Refuse: agents ask. This is a PUT or LOCK to a question that is not open."""
        self._on_loop(partial(self.require_write, path))
        raise self.refused(path)

    def may_write(self, path: str) -> bool:
        """Return whether the caller may answer there."""
        target = parse_path(path)
        return isinstance(target, QuestionPath) and all(
            self._gate.may(operation, target.session) for operation in Right.STEER.operations
        )

    def _answer(self, target: QuestionPath, answer: str, conditions: Conditions) -> None:
        require(conditions, target.id, exists=self._open(target) is not None)
        self._caller.answer_question(target.session, target.id, answer)

    def _open(self, target: QuestionPath) -> Question | None:
        session = self._gate.known(target.session)
        question = None if session is None else session.questions.get(target.id)
        return None if question is None or question.state is not QuestionState.OPEN else question

    def _look(self, path: str) -> Resource | None:
        match parse_path(path):
            case QuestionsRoot():
                return Resource("/", collection=True)
            case SessionQuestions(name):
                session = self._gate.known(name)
                return None if session is None else Resource(path, collection=True, modified=session.updated_at)
            case QuestionPath(name) as place:
                question = self._open(place)
                if question is None:
                    return None
                if self._gate.may("read_binary", name):
                    return _entry(path, name, question)
                return Resource(path, media_type=MEDIA_TYPE) if self.may_write(path) else None
        return None

    def _members(self, path: str) -> list[Resource]:
        match parse_path(path):
            case QuestionsRoot():
                return [
                    Resource(f"/{file_name_of(session.id)}", collection=True, modified=session.updated_at)
                    for session in self._gate.active(limit=1 << 40)
                    if open_questions(session.questions) and self._gate.may("read_binary", session.id)
                ]
            case SessionQuestions(name):
                questions = open_questions(self._gate.get(name, "read_binary").questions)
                return [_entry(f"{path.rstrip('/')}/{question.id}", name, question) for question in questions]
        return []


def _text(session: str, question: Question) -> str:
    return question_text(session, represented(question))


def _entry(path: str, session: str, question: Question) -> Resource:
    return Resource(path, False, len(_text(session, question).encode()), question.asked_at, question.id, MEDIA_TYPE)
