"""Questions of agents: asked by the agent that holds a turn, answered by a person from anywhere (A5)."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from cfs import wire
from cfs.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidIdentifier,
    InvalidParameters,
    NotFound,
    StorageFull,
    TooLarge,
    TooMany,
    Unavailable,
    UnsupportedMedia,
)
from cfs_server.domain.questions import Question, QuestionState, open_questions
from cfs_server.domain.rights import Right
from cfs_server.http.bodies import json_body
from cfs_server.http.caller import Me, Seconds, Sessions
from cfs_server.http.disconnects import attend
from cfs_server.http.idempotency import Idempotency
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json, question
from cfs_server.http.session_paths import SessionId
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session

router = APIRouter(prefix="/v1/sessions", tags=["questions"])

QuestionId = Annotated[
    str, Path(description="The question.", alias="question", json_schema_extra={"pattern": "^[0-9a-f]{32}$"})
]
_ERRORS = (InvalidIdentifier, InvalidParameters, NotFound)


@router.post(
    "/{id:session}/questions",
    status_code=201,
    responses={
        201: answer("Asked", json=wire.Question),
        **problems(*_ERRORS, Forbidden, StorageFull, TooLarge, TooMany, UnsupportedMedia),
    },
    openapi_extra=body(json=wire.NewQuestion),
)
async def ask(
    id: SessionId,  # noqa: A002 - the name in the path
    new: Annotated[wire.NewQuestion, Depends(json_body(wire.NewQuestion))],
    me: Me,
    ticket: Idempotency,  # noqa: ARG001 - the middleware keeps the answer
) -> Response:
    """Ask a person, as the agent that holds the running turn."""
    session = me.sessions.get_for(Right.STEER, id)
    return as_json(question(session.ask(new, me.principal.name)), 201)


@router.get(
    "/{id:session}/questions", responses={200: answer("The questions", json=wire.QuestionList), **problems(*_ERRORS)}
)
async def list_questions(
    id: SessionId,  # noqa: A002
    sessions: Sessions,
    every: Annotated[bool, Query(alias="all", description="Also the newest ones that are not open any more.")] = False,
) -> Response:
    """List the open questions of a session."""
    session = sessions.get(id, "read_binary")
    questions = tuple(session.questions.values()) if every else open_questions(session.questions)
    return as_json(wire.QuestionList(questions=tuple(map(question, questions))))


@router.get(
    "/{id:session}/questions/{question}",
    responses={200: answer("The question", json=wire.Question), **problems(*_ERRORS, Gone, Unavailable)},
)
async def get_question(
    request: Request,
    id: SessionId,  # noqa: A002
    question_id: QuestionId,
    me: Me,
    wait: Annotated[Seconds, Query(description="Seconds to wait until it is not open any more.")] = 0.0,
) -> Response:
    """Get a question, or wait until it is answered or withdrawn."""
    session = me.sessions.get(id, "read_binary")
    session.question(question_id)
    with me.sessions.throughout(session, "read_binary"):
        closed = await attend(request, _closed(session, question_id, me.wait_limit(wait), me.sessions))
    return as_json(question(closed))


@router.post(
    "/{id:session}/questions/{question}",
    responses={
        200: answer("Answered, or withdrawn", json=wire.Question),
        **problems(*_ERRORS, Conflict, Forbidden, TooLarge, UnsupportedMedia),
    },
    openapi_extra=body(json=wire.QuestionAnswer),
)
async def answer_question(
    id: SessionId,  # noqa: A002
    question_id: QuestionId,
    given: Annotated[wire.QuestionAnswer, Depends(json_body(wire.QuestionAnswer))],
    me: Me,
    ticket: Idempotency,  # noqa: ARG001 - the middleware keeps the answer
) -> Response:
    """Answer a question. The first answer counts."""
    if given.claim is None and given.answer is not None:
        return as_json(question(me.answer_question(id, question_id, given.answer)))
    session = me.sessions.get_for(Right.STEER, id)
    return as_json(question(session.answer_question(question_id, given.answer, me.principal.name, given.claim)))


async def _closed(session: Session, question_id: str, seconds: float, sessions: AuthorizedSessions) -> Question:
    """Return a question when it is no longer open, or when the time is over."""
    requested_id = session.id
    try:
        async with asyncio.timeout(seconds):
            while session.question(question_id).state is QuestionState.OPEN:
                session.require_going_on()
                await session.log.broadcast.wait()
                sessions.require_still(session, requested_id, "read_binary")
                if session.deleted:
                    session.require_going_on()
    except TimeoutError:
        pass
    return session.question(question_id)
