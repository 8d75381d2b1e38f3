"""Streams of what happens, to one session and to all (H2, S11)."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from cfs.errors import InvalidIdentifier, InvalidParameters, NotAcceptable, NotFound, TooMany
from cfs_server.openapi import answer, problems
from cfs_server.routes import accept as media
from cfs_server.routes.context import CURSOR_PATTERN, Accept, Parts, SessionId
from cfs_server.routes.views import detail
from cfs_server.sessions.events import Stale
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from cfs_server.streams import follow

router = APIRouter(prefix="/v1", tags=["events"])

LastEventId = Annotated[
    str | None,
    Header(
        description="Resume after this event; goes before `after`.",
        pattern=CURSOR_PATTERN,
    ),
]
After = Annotated[
    str | None,
    Query(
        description="Begin after this event: its id or its number, 0 for the oldest. From now on unless set.",
        pattern=CURSOR_PATTERN,
    ),
]


@router.get(
    "/sessions/{id:session}/events",
    responses={
        200: answer("A stream that ends with the session", events=None),
        **problems(InvalidIdentifier, InvalidParameters, NotFound, NotAcceptable, TooMany),
    },
)
async def session_events(
    id: SessionId,  # noqa: A002 - the name in the path
    parts: Parts,
    after: After = None,
    last_event_id: LastEventId = None,
    accept: Accept = None,
) -> Response:
    """Follow one session."""
    media.choose(accept, (media.EVENTS,))
    session = parts.store.get(id)
    cursor = session.log.cursor(last_event_id or after)
    return parts.streams.response(follow(session.log, cursor, lambda stale: stale_json(stale, session, parts.store)))


@router.get(
    "/events",
    responses={
        200: answer("A stream without end", events=None),
        **problems(InvalidParameters, NotAcceptable, TooMany),
    },
)
async def all_events(
    parts: Parts,
    after: After = None,
    last_event_id: LastEventId = None,
    accept: Accept = None,
) -> Response:
    """Follow all sessions, in one order."""
    media.choose(accept, (media.EVENTS,))
    log = parts.store.bus.log
    cursor = log.cursor(last_event_id or after)
    return parts.streams.response(follow(log, cursor, lambda stale: f'{{"asked":{stale.asked},"last":{stale.last}}}'))


def stale_json(stale: Stale, session: Session, store: SessionStore) -> str:
    """Say that events are lost, and what the session is now, so that the reader can go on from there."""
    state = detail(session, store).model_dump_json()
    return f'{{"asked":{stale.asked},"last":{stale.last},"session":{state}}}'
