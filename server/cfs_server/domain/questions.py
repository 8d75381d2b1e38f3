"""A question of an agent to a person, whether a command may run or a tool be called (A5).

A question belongs to a turn that an agent answers, and leaves with it. It is open until somebody answers it, or until
it is withdrawn: by its agent, at the end of the turn, or with the agent's lease. The first answer counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from cfs.errors import Conflict
from cfs.wire import QuestionKind
from cfs_server.domain.message_sizes import MESSAGE_COST

MOST_OPEN = 16
"""Maximum number of open questions of one session."""
MOST_CLOSED = 16
"""How many closed questions of a running turn can still be read, the newest ones."""


class QuestionState(StrEnum):
    """The state of a question. Only an open one changes."""

    OPEN = "open"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and its answer if it has one.

    `asker` and `by` are principals: the agent's, and the one that answered. `terminal` is true if the answer was given
    to the agent itself, at its terminal. `asked_at` is in seconds since the epoch.
    """

    id: str
    turn: str
    text: str
    choices: tuple[str, ...]
    kind: QuestionKind = "command"
    directory: str | None = None
    background: bool = False
    asker: str = ""
    asked_at: float = 0.0
    state: QuestionState = QuestionState.OPEN
    answer: str | None = None
    by: str | None = None
    terminal: bool = False

    @property
    def cost(self) -> int:
        """Its memory in bytes."""
        texts = (self.text, self.directory or "", *self.choices)
        return MESSAGE_COST + sum(len(text.encode(errors="surrogatepass")) for text in texts)

    def closed(self, answer: str | None, by: str | None, *, terminal: bool) -> Self:
        """Return the question with its answer; without an answer it is withdrawn."""
        state = QuestionState.WITHDRAWN if answer is None else QuestionState.ANSWERED
        return replace(self, state=state, answer=answer, by=by, terminal=terminal)


def open_questions(questions: Mapping[str, Question]) -> tuple[Question, ...]:
    """Return the questions that wait for an answer, oldest first."""
    return tuple(question for question in questions.values() if question.state is QuestionState.OPEN)


def oldest_closed(questions: Mapping[str, Question]) -> tuple[Question, ...]:
    """Return the closed questions that are too many, oldest first."""
    closed = [question for question in questions.values() if question.state is not QuestionState.OPEN]
    return tuple(closed[: max(0, len(closed) - MOST_CLOSED)])


def already_closed(question: Question) -> Conflict:
    """Return why a question cannot be answered any more."""
    if question.answer is None:
        return Conflict("the question was withdrawn: its agent does not wait for an answer any more")
    location = " at the agent's terminal" if question.terminal else ""
    message = f"the question was answered already, by {question.by}{location}: {question.answer}"
    return Conflict(message, answer=question.answer, by=question.by)
