"""Questions of agents (A5)."""

from typing import Annotated, Literal

from pydantic import (
    Field,
    StringConstraints,
)

from cfs.contract.wire.base import WireModel

MAX_QUESTION = 65_536
"""Longest text of a question, in characters."""

QuestionId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
QuestionKind = Literal["command", "write", "read", "mcp", "spawn", "other"]
"""What a question is about: a command, a file, a tool of an MCP server, another agent, or any other tool."""
Choice = Annotated[str, StringConstraints(min_length=1, max_length=1_024)]
CHOICES = ("allow", "always", "deny")
"""What a question offers where its agent offers nothing else."""


class NewQuestion(WireModel):
    """Body of `POST .../questions`: what an agent asks about the turn that it holds with the secret `claim`.

    A question of the kind `command` is whether the command `text` may run, in a directory and maybe in the background.
    Of any other kind, `text` is the call of a tool: its name, and its arguments as JSON. A choice is shown as it is
    written, such as `always execute_command(git status:*)`.
    """  # A5

    claim: str
    kind: QuestionKind = "command"
    text: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUESTION)]
    choices: Annotated[tuple[Choice, ...], Field(min_length=1, max_length=8)] = CHOICES
    directory: Annotated[str, StringConstraints(max_length=4_096)] | None = None
    background: bool = False


class Question(WireModel):
    """A question of an agent. `text` is exactly what would run: escape what cannot be seen before you show it.

    `answer` is one of the `choices` if it is `answered`. `by` names the principal that answered or withdrew it, null
    for the server; `terminal` says that the answer was given at the agent's own terminal. The principal `asker` cannot
    answer its own question where the server requires tokens.
    """  # A5

    id: str
    turn: str
    kind: QuestionKind
    text: str
    choices: tuple[str, ...]
    directory: str | None = None
    background: bool = False
    asker: str
    asked_at: float
    state: Literal["open", "answered", "withdrawn"]
    answer: str | None = None
    by: str | None = None
    terminal: bool = False


class QuestionList(WireModel):
    """Questions of one session, oldest first."""

    questions: tuple[Question, ...]


class QuestionAnswer(WireModel):
    """Body of `POST .../questions/{question}`: one of its choices.

    With the secret `claim` of its turn the agent itself notes what was answered at its terminal, or withdraws the
    question: `answer` is null then.
    """

    answer: Choice | None
    claim: str | None = None
