"""Sessions as resources: list, create, read, change, copy and delete (H1)."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from cfs import wire
from cfs.contract.transcript import render
from cfs.errors import (
    AlreadyExists,
    Conflict,
    Gone,
    InvalidIdentifier,
    InvalidParameters,
    InvalidSettings,
    InvalidTranscript,
    LooksAlike,
    NotAcceptable,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    StorageFull,
    Timeout,
    TooLarge,
    UnsupportedMedia,
)
from cfs_server.domain.history import rendered
from cfs_server.domain.loop_bridge import aside
from cfs_server.domain.past import read_moment
from cfs_server.domain.transcripts import SizedMessages, history_of, read_history
from cfs_server.http import negotiation as media
from cfs_server.http.bodies import apart, json_body, read_text
from cfs_server.http.caller import Accept, At, Caller, Delay, IfMatch, IfNoneMatch, Me, Seconds, Sessions
from cfs_server.http.disconnects import attend
from cfs_server.http.etags import content_etag, require_match, session_headers, unchanged, view_etag
from cfs_server.http.openapi import NOT_MODIFIED, answer, body, problems
from cfs_server.http.representations import (
    LongText,
    as_json,
    detail,
    detail_json,
    info,
    location,
    past_detail,
    tree,
)
from cfs_server.http.session_paths import SessionId
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

_ID = (InvalidIdentifier, InvalidParameters)
_BODY = (TooLarge, UnsupportedMedia, InvalidParameters)


@router.get("", responses={200: answer("A page", json=wire.SessionPage), 304: NOT_MODIFIED, **problems(*_ID)})
async def list_sessions(
    sessions: Sessions,
    prefix: Annotated[str, Query(description="Beginning of the ids; with a '/' the sub-sessions that it names.")] = "",
    after: Annotated[str, Query(description="Last id of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    active: Annotated[bool, Query(description="Only those with running or waiting turns, at any depth.")] = False,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """List sessions ordered by id, one page at a time."""
    listed = (sessions.active if active else sessions.page)(prefix, after, limit + 1)
    page = wire.SessionPage(
        sessions=tuple(info(session, sessions) for session in listed[:limit]),
        next=listed[limit - 1].id if len(listed) > limit else None,
    )
    return _listing(page, {"Cache-Control": "no-cache"}, if_none_match)


@router.post(
    "",
    status_code=201,
    responses={
        201: answer("Made", state=True, location=True, json=wire.SessionInfo),
        **problems(*_ID, *_BODY, InvalidSettings, InvalidTranscript, AlreadyExists, LooksAlike, StorageFull),
    },
    openapi_extra=body(required=False, json=wire.NewSession),
)
async def create_session(
    request: Request, new: Annotated[wire.NewSession, Depends(json_body(wire.NewSession))], sessions: Sessions
) -> Response:
    """Create a session. A transcript, or messages, become its history."""  # S2, S14
    if new.id is not None:
        sessions.require("write", new.id)
    history = await apart(request, partial(history_of, new, sessions.limits.messages))
    return _made(sessions.create(new.id, new.settings, history, new.tokens, new.cost), sessions, 201)


@router.get(
    "/{id:session}",
    responses={
        200: answer("The session", state=True, json=wire.SessionDetail, text=None),
        304: NOT_MODIFIED,
        **problems(*_ID, NotFound, Gone, NotAcceptable),
    },
)
async def read_session(
    request: Request,
    id: SessionId,  # noqa: A002 - the name in the path
    me: Me,
    wait: Annotated[Seconds | None, Query(description="Seconds to wait until the session is settled.")] = None,  # S13
    at: At = None,
    accept: Accept = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return a session as JSON, or its transcript as text; with `at`, as it was."""  # S6, S7
    chosen = media.choose(accept, (media.JSON, media.TEXT))
    if at is not None:  # the past needs no wait
        return await _read_past(id, read_moment(at), chosen, me, if_none_match)
    session = me.sessions.get(id, "read_binary")
    settled: dict[str, str] = {}
    if wait is not None:
        in_time = await attend(request, me.sessions.wait_settled(session, me.wait_limit(wait), "read_binary"))
        settled = {"X-CFS-Settled": "true" if in_time else "false"}
    etag = session.etag if chosen == media.TEXT else view_etag(session, me.sessions)
    if unchanged(if_none_match, etag):  # the messages need not be in memory
        return Response(status_code=304, headers=session_headers(session, etag) | settled)
    async with me.sessions.loaded(session):
        if chosen == media.TEXT:
            await rendered(session.history, me.principal.name)
        etag = session.etag if chosen == media.TEXT else view_etag(session, me.sessions)
        headers = session_headers(session, etag) | settled
        if chosen == media.TEXT:
            text = session.history.text
            data = await aside(len(text), me.principal.name, text.encode)
            return LongText(data, headers=headers, media_type="text/plain; charset=utf-8")
        whole = detail(session, me.sessions)
        data = await aside(session.history.cost, me.principal.name, partial(detail_json, whole))
        return LongText(data, headers=headers, media_type="application/json")


async def _read_past(session_id: str, moment: float, chosen: str, me: Caller, if_none_match: str | None) -> Response:
    session, past = await me.sessions.past(session_id)
    version = past.at(moment)
    if version is None:
        raise NotFound(f"session {session_id!r} did not exist at that time")
    headers = session_headers(session, f'"{session.nonce}-{version.number}"')
    if unchanged(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    history = past.messages(version.number)
    if chosen == media.TEXT:
        text = await aside(history.size, me.principal.name, partial(render, history.messages))
        return LongText(text.encode(), headers=headers, media_type="text/plain; charset=utf-8")
    whole = past_detail(session, me.sessions, version, history)
    data = await aside(history.cost, me.principal.name, partial(detail_json, whole))
    return LongText(data, headers=headers, media_type="application/json")


@router.delete(
    "/{id:session}",
    status_code=204,
    responses={204: answer("Deleted"), **problems(*_ID, NotFound, PreconditionFailed)},
)
async def delete_session(
    id: SessionId,  # noqa: A002
    sessions: Sessions,
    if_match: IfMatch = None,
) -> Response:
    """Delete a session and its sub-sessions."""  # S2
    require_match(if_match, sessions.get(id, "delete"), sessions)
    sessions.delete(id)
    return Response(status_code=204)


@router.get(
    "/{id:session}/settings",
    responses={
        200: answer("The settings", state=True, json=wire.Settings),
        304: NOT_MODIFIED,
        **problems(*_ID, NotFound),
    },
)
async def read_settings(
    id: SessionId,  # noqa: A002
    sessions: Sessions,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the settings of a session."""  # S9
    session = sessions.get(id, "read_binary")
    headers = session_headers(session, view_etag(session, sessions))
    if unchanged(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return as_json(session.settings, headers=headers)


@router.patch(
    "/{id:session}/settings",
    responses={
        200: answer("The settings now", state=True, json=wire.Settings),
        204: answer("Changed; for a caller that may not read them"),
        **problems(*_ID, *_BODY, InvalidSettings, NotFound, PreconditionFailed),
    },
    openapi_extra=body(json=wire.SettingsPatch),
)
async def change_settings(
    id: SessionId,  # noqa: A002
    patch: Annotated[wire.SettingsPatch, Depends(json_body(wire.SettingsPatch))],
    sessions: Sessions,
    if_match: IfMatch = None,
) -> Response:
    """Change settings. Null resets a setting to its default."""  # S9
    session = sessions.get(id, "write")
    require_match(if_match, session, sessions)
    sessions.configure(id, patch)
    if not sessions.may("read_binary", id):
        return Response(status_code=204)
    return as_json(session.settings, headers=session_headers(session, view_etag(session, sessions)))


@router.put(
    "/{id:session}/transcript",
    responses={
        200: answer("Replaced", state=True, json=wire.SessionInfo),
        **problems(
            *_ID, *_BODY, InvalidTranscript, NotFound, Conflict, PreconditionFailed, PreconditionRequired, StorageFull
        ),
    },
    openapi_extra=body(text=None),
)
async def replace_transcript(
    request: Request,
    id: SessionId,  # noqa: A002
    sessions: Sessions,
    delay: Delay = 0.0,
    if_match: IfMatch = None,
) -> Response:
    """Replace the history with an edited transcript."""  # S14
    text = await read_text(request)
    history: SizedMessages | None = None
    while history is None:
        async with sessions.loaded(id):
            session = sessions.get(id, "write", "delete")
            if if_match is None:
                raise PreconditionRequired(
                    f"say which version you edited: If-Match: {session.etag} names the present one"
                )
            require_match(if_match, session, sessions)
            session.require_idle("its history cannot be replaced")
            etag, messages = session.etag, session.history.messages
        history = await apart(request, partial(read_history, text, sessions.limits.messages, messages))
        if session.etag != etag:  # it has changed in the meantime, which `If-Match: *` allows
            history = None
    sessions.replace(id, history, etag, delay)
    return as_json(info(session, sessions), headers=session_headers(session, session.etag))


@router.post(
    "/{id:session}/cancel",
    responses={200: answer("Cancelled", json=wire.Cancelled), **problems(*_ID, *_BODY, NotFound)},
    openapi_extra=body(required=False, json=wire.CancelRequest),
)
async def cancel(
    id: SessionId,  # noqa: A002
    what: Annotated[wire.CancelRequest, Depends(json_body(wire.CancelRequest))],
    sessions: Sessions,
) -> Response:
    """Cancel the running turn. On request, also cancel waiting turns and sub-sessions."""  # S12
    running, queued = sessions.cancel(id, queued=what.queued, cascade=what.cascade)
    return as_json(wire.Cancelled(running=running, queued=queued))


@router.post(
    "/{id:session}/fork",
    status_code=201,
    responses={
        201: answer("Copied", state=True, location=True, json=wire.Fork),
        **problems(*_ID, *_BODY, NotFound, AlreadyExists, LooksAlike, StorageFull),
    },
    openapi_extra=body(required=False, json=wire.ForkRequest),
)
async def fork(
    id: SessionId,  # noqa: A002
    how: Annotated[wire.ForkRequest, Depends(json_body(wire.ForkRequest))],
    me: Me,
) -> Response:
    """Copy a session, with the files of its workspace. The copy is independent."""  # S14
    copy, warnings = await me.fork(id, how.id, how.messages, files=how.files)
    answer = wire.Fork(**dict(info(copy, me.sessions)), warnings=warnings)
    return as_json(answer, 201, _headers_of(copy, me.sessions))


@router.post(
    "/{id:session}/rename",
    responses={
        200: answer("Renamed", state=True, location=True, json=wire.SessionInfo),
        **problems(*_ID, *_BODY, NotFound, AlreadyExists, LooksAlike, Conflict, StorageFull),
    },
    openapi_extra=body(json=wire.RenameRequest),
)
async def rename(
    id: SessionId,  # noqa: A002
    to: Annotated[wire.RenameRequest, Depends(json_body(wire.RenameRequest))],
    sessions: Sessions,
) -> Response:
    """Change the id of a session and of everything below it."""  # S14
    return _made(sessions.rename(id, to.id), sessions, 200)


@router.get(
    "/{id:session}/wait",
    responses={200: answer("Settled", state=True, json=wire.SessionInfo), **problems(*_ID, NotFound, Gone, Timeout)},
)
async def wait(
    request: Request,
    id: SessionId,  # noqa: A002
    me: Me,
    timeout: Seconds | None = None,
) -> Response:
    """Wait until a session and everything below it is idle."""  # S13
    session = me.sessions.get(id, "file")
    seconds = me.wait_limit(timeout)
    if not await attend(request, me.sessions.wait_settled(session, seconds, "file")):
        raise Timeout(f"session {id!r} is not settled after {seconds:g} seconds; ask again")
    return as_json(info(session, me.sessions), headers=session_headers(session, view_etag(session, me.sessions)))


@router.get(
    "/{id:session}/sub_sessions",
    responses={
        200: answer("The tree", state=True, json=wire.SessionTree),
        304: NOT_MODIFIED,
        **problems(*_ID, NotFound),
    },
)
async def sub_sessions(
    id: SessionId,  # noqa: A002
    sessions: Sessions,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the tree of sub-sessions, at any depth."""
    session = sessions.get(id, "list")
    return _listing(tree(session, sessions), session_headers(session, session.etag), if_none_match)


def _listing(listing: BaseModel, headers: dict[str, str], if_none_match: str | None) -> Response:
    answer = as_json(listing)
    answer.headers.update(headers | {"ETag": content_etag(bytes(answer.body))})
    if unchanged(if_none_match, answer.headers["ETag"]):
        return Response(status_code=304, headers=headers | {"ETag": answer.headers["ETag"]})
    return answer


def _made(session: Session, sessions: AuthorizedSessions, status: int) -> Response:
    return as_json(info(session, sessions), status, _headers_of(session, sessions))


def _headers_of(session: Session, sessions: AuthorizedSessions) -> dict[str, str]:
    return session_headers(session, view_etag(session, sessions)) | {"Location": location(session.id)}
