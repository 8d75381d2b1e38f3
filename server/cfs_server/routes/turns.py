"""Claim, update and finish a turn: the API of agents that answer a session in place of the model (S10)."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

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
    Unavailable,
    UnsupportedMedia,
)
from cfs_server.domain.rights import Right
from cfs_server.domain.turns import Turn
from cfs_server.http.bodies import json_body
from cfs_server.http.caller import Me, Sessions
from cfs_server.http.disconnects import attend
from cfs_server.http.idempotency import BoundTurn, Idempotency, Ticket
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json, reply
from cfs_server.http.session_paths import SessionId
from cfs_server.sessions import tracing
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session

router = APIRouter(prefix="/v1/sessions", tags=["agents"])

TurnId = Annotated[
    str, Path(description="The turn that the claim named.", json_schema_extra={"pattern": "^[0-9a-f]{32}$"})
]
_ERRORS = (InvalidIdentifier, InvalidParameters, NotFound, TooLarge, UnsupportedMedia)


@router.post(
    "/{id:session}/claim",
    responses={
        200: answer("The turn is the caller's for as long as its lease lasts", json=wire.Claim),
        204: answer("Nothing to do. Before `wait` is over: files of the workspace were rewound or merged"),
        **problems(*_ERRORS, Conflict, Gone, Unavailable),
    },
    openapi_extra=body(required=False, json=wire.ClaimRequest),
)
async def claim(
    request: Request,
    id: SessionId,  # noqa: A002 - the name in the path
    terms: Annotated[wire.ClaimRequest, Depends(json_body(wire.ClaimRequest))],
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Claim the next waiting message, or wait for one."""
    if (bound := ticket.bound) is not None:
        session = me.sessions.with_key(bound.session, "read_binary", "write")
        turn = session.leased(bound.turn, bound.secret)
    else:
        session = me.sessions.get_for(Right.ANSWER, id)
        turn = await attend(request, _next(session, terms.lease, me.wait_limit(terms.wait), me.sessions, ticket))
        if turn is None:
            ticket.end()  # nothing was changed: the key is for the claim that finds something
    return Response(status_code=204) if turn is None else as_json(_claim(session, turn))


@router.post(
    "/{id:session}/turns/{turn}/update",
    responses={200: answer("Added", json=wire.Claim), **problems(*_ERRORS, Forbidden, StorageFull)},
    openapi_extra=body(json=wire.AgentUpdate),
)
async def update(
    id: SessionId,  # noqa: A002
    turn: TurnId,
    news: Annotated[wire.AgentUpdate, Depends(json_body(wire.AgentUpdate))],
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Add text or whole messages to the turn, and renew the lease."""
    if (bound := ticket.bound) is not None:
        session = me.sessions.with_key(bound.session, "write")
        leased = session.leased(turn, news.claim)
        if leased is None:
            raise NotFound("the update was added, but the turn has ended since, or another agent holds it")
        return as_json(_claim(session, leased))
    session = me.sessions.get_for(Right.STEER, id)
    updated = session.update(
        turn,
        news.claim,
        text=news.text,
        messages=news.messages,
        lease_seconds=news.lease,
        work=news.work,
        decisions=news.decisions,
        principal=me.principal.name,
    )
    ticket.bind(BoundTurn(session.key, turn))
    return as_json(_claim(session, updated))


@router.post(
    "/{id:session}/turns/{turn}/finish",
    responses={200: answer("Finished", json=wire.Reply), **problems(*_ERRORS, Forbidden, StorageFull)},
    openapi_extra=body(json=wire.AgentFinish),
)
async def finish(
    id: SessionId,  # noqa: A002
    turn: TurnId,
    end: Annotated[wire.AgentFinish, Depends(json_body(wire.AgentFinish))],
    sessions: Sessions,
    ticket: Idempotency,
) -> Response:
    """Finish the turn with a reply or an error. The next message can then be claimed."""
    if (bound := ticket.bound) is not None:
        session = sessions.with_key(bound.session, "write")
        ended = await sessions.turn(session, turn, bound.event)
    else:
        session = sessions.get_for(Right.STEER, id)
        before = session.log.last
        ended = session.finish(turn, end.claim, reply=end.reply, error=end.error, usage=end.usage, work=end.work)
        ticket.bind(BoundTurn(session.key, turn, before))
    return as_json(reply(session, ended, ended.result.result()))


async def _next(
    session: Session, lease: float, seconds: float, sessions: AuthorizedSessions, ticket: Ticket
) -> Turn | None:
    """Claim a turn as soon as one is available. Return None when the time is over, or files were rewound or merged."""
    requested_id, attendance = session.id, session.attendance
    with attendance.waiting():
        try:
            async with asyncio.timeout(seconds):
                while (turn := _try(session, lease)) is None:
                    if attendance.recalled and seconds:
                        attendance.recalled = False
                        return None
                    await session.changed.wait()  # not by events: those of a reply would wake all agents that wait
                    sessions.require_still(session, requested_id, "read_binary", "write")
        except TimeoutError:
            return None
    attendance.recalled = False  # before its work, the agent looks anyway
    assert turn.lease is not None  # noqa: S101 - it has just been made
    ticket.bind(BoundTurn(session.key, turn.id, secret=turn.lease.secret))
    return turn


def _try(session: Session, lease: float) -> Turn | None:
    session.require_going_on()
    return session.claim(lease)


def _claim(session: Session, turn: Turn) -> wire.Claim:
    assert turn.lease is not None  # noqa: S101 - it has just been made
    return wire.Claim(
        session=session.id,
        turn=turn.id,
        claim=turn.lease.secret,
        message=turn.message,
        expires_at=turn.lease.expires_at,
        traceparent=tracing.trace_of(turn.id),
        rewound=session.history.rewound,
    )
