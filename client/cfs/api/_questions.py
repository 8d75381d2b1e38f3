"""Questions of agents."""

from collections.abc import Sequence
from urllib.parse import quote

from cfs.api._calls import Call, Request, json_request, parse_model, path_of, seconds_text
from cfs.contract import wire


def ask(
    session: str,
    claim: str,
    text: str,
    *,
    kind: wire.QuestionKind = "command",
    directory: str | None = None,
    background: bool = False,
    choices: Sequence[str] = wire.CHOICES,
) -> Call[wire.Question]:
    """`POST /v1/sessions/{id}/questions`: ask a person about a call, as the agent of a claim (A5)."""
    new = wire.NewQuestion(
        claim=claim, text=text, kind=kind, choices=tuple(choices), directory=directory, background=background
    )
    return Call(json_request("POST", path_of(session, "questions"), new), parse_model(wire.Question))


def questions(session: str, *, every: bool = False) -> Call[tuple[wire.Question, ...]]:
    """`GET /v1/sessions/{id}/questions`: the open ones, or also the newest closed ones of the running turn (A5)."""
    request = Request("GET", path_of(session, "questions"), {"all": "true"} if every else {})
    return Call(request, lambda answer: wire.QuestionList.model_validate_json(answer.body).questions)


def question(session: str, question: str, wait: float = 0.0) -> Call[wire.Question]:
    """`GET /v1/sessions/{id}/questions/{question}`: after up to `wait` seconds until it is not open any more (A5)."""
    params = {"wait": seconds_text(wait)} if wait else {}
    return Call(Request("GET", _question(session, question), params, wait_seconds=wait), parse_model(wire.Question))


def answer(session: str, question: str, answer: str | None, claim: str | None = None) -> Call[wire.Question]:
    """`POST /v1/sessions/{id}/questions/{question}`: answer it; `Conflict` if another answer came first (A5).

    The agent that asked sends its claim: with what its terminal answered, or with None to withdraw the question.
    """
    body = wire.QuestionAnswer(answer=answer, claim=claim)
    return Call(json_request("POST", _question(session, question), body), parse_model(wire.Question))


def _question(session: str, question: str) -> str:
    return path_of(session, f"questions/{quote(question, safe='')}")
