"""Streams of what happens, to one session and to all (H2, S11)."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from cfs.errors import InvalidIdentifier, InvalidParameters, NotAcceptable, NotFound, TooMany
from cfs_server.event_streams import follow
from cfs_server.openapi import answer, problems
from cfs_server.routes import http as media
from cfs_server.routes.http import CURSOR_PATTERN, Accept, Me, SessionId, detail
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.events import Event, Stale
from cfs_server.sessions.session import Session

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
    """Follow one session."""
    media.choose(accept, (media.EVENTS,))
    session = me.sessions.get(id, "read_binary")
    cursor = session.log.cursor(last_event_id or after)
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
    """Follow all sessions, in one order."""
    media.choose(accept, (media.EVENTS,))
    log = me.sessions.log
    return me.stream(follow(log, log.cursor(last_event_id or after), AllView(me.sessions)))


class SessionView:
    """One session as its reader may see it: not any more once it has been renamed, or a right taken, out of sight."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, session: Session, sessions: AuthorizedSessions) -> None:
        self._session = session
        self._sessions = sessions

    def stale(self, stale: Stale) -> str | None:
        """Say that events are lost, and what the session is now, so that the reader can go on from there."""
        if not self._sessions.may("read_binary", self._session.id):
            return None
        state = detail(self._session, self._sessions).model_dump_json()
        return f'{{"asked":{stale.asked},"last":{stale.last},"session":{state}}}'

    def visible(self, events: list[Event]) -> tuple[list[Event], bool]:
        """Leave out what happened under names that the caller may not see; the stream ends with such a name."""
        return self._sessions.visible(events), self._sessions.may("read_binary", self._session.id)


class AllView:
    """All sessions that a caller may read."""

    __slots__ = ("_sessions",)

    def __init__(self, sessions: AuthorizedSessions) -> None:
        self._sessions = sessions

    def stale(self, stale: Stale) -> str:
        """Say that events are lost: the reader must list the sessions anew."""
        return f'{{"asked":{stale.asked},"last":{stale.last}}}'

    def visible(self, events: list[Event]) -> tuple[list[Event], bool]:
        """Leave out what the caller may not see."""
        return self._sessions.visible(events), True
