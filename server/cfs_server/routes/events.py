"""Event streams of one session and of all sessions (H2, S11)."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from cfs.errors import InvalidIdentifier, InvalidParameters, NotAcceptable, NotFound, TooMany
from cfs_server.http import negotiation as media
from cfs_server.http.caller import CURSOR_PATTERN, Accept, Me
from cfs_server.http.event_streams import AllView, SessionView, follow
from cfs_server.http.openapi import answer, problems
from cfs_server.http.session_paths import SessionId

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
    me: Me,
    after: After = None,
    last_event_id: LastEventId = None,
    accept: Accept = None,
) -> Response:
    """Stream the events of one session."""
    media.choose(accept, (media.EVENTS,))
    session = me.sessions.get(id, "read_binary")
    cursor = await session.log.cursor(last_event_id or after)
    return me.stream(follow(session.log, cursor, SessionView(session, me.sessions)))


@router.get(
    "/events",
    responses={
        200: answer("A stream without end", events=None),
        **problems(InvalidParameters, NotAcceptable, TooMany),
    },
)
async def all_events(
    me: Me,
    after: After = None,
    last_event_id: LastEventId = None,
    accept: Accept = None,
) -> Response:
    """Stream the events of all sessions, in one order."""
    media.choose(accept, (media.EVENTS,))
    log = me.sessions.log
    cursor = await log.cursor(last_event_id or after)
    return me.stream(follow(log, cursor, AllView(me.sessions)))
