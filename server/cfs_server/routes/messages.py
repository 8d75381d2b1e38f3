"""Writes a message to a session and returns its turn in the requested form (S3, S4, H1)."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from cfs import wire
from cfs.api import LIFE
from cfs.errors import (
    Conflict,
    Gone,
    InvalidIdentifier,
    InvalidParameters,
    NotAcceptable,
    PreconditionFailed,
    StorageFull,
    Timeout,
    TooLarge,
    TooMany,
    Unavailable,
    UnsupportedMedia,
)
from cfs_server.completions.requests import read_tools, refusal, schema_of
from cfs_server.domain.history import rendered
from cfs_server.domain.message_sizes import check_content, decode_message
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.turns import Turn, TurnRequest, TurnResult
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.http import negotiation as media
from cfs_server.http.bodies import apart, is_json, most_values, parse, require_text
from cfs_server.http.caller import Accept, Delay, IfMatch, Life, Me
from cfs_server.http.disconnects import DisconnectChoice, OnDisconnect, attend, cancel_unless_ended
from cfs_server.http.etags import require_match_of
from cfs_server.http.event_streams import SessionView, follow
from cfs_server.http.idempotency import BoundTurn, Idempotency
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json, location, reply
from cfs_server.http.session_paths import SessionId
from cfs_server.sessions.session import Session

router = APIRouter(prefix="/v1/sessions", tags=["messages"])

_WAIT = r"^(true|false|[0-9]{1,5}(\.[0-9]{1,6})?)$"

Wait = Annotated[
    str,
    Query(pattern=_WAIT, description="`true`, or seconds, to get the finished reply instead of the acceptance."),
]


@router.post(
    "/{id:session}/messages",
    status_code=202,
    responses={
        200: answer("The finished reply, or this turn's events", json=wire.Reply, events=None),
        202: answer("Accepted", location=True, json=wire.Accepted),
        **problems(
            Conflict,
            InvalidIdentifier,
            InvalidParameters,
            NotAcceptable,
            Gone,
            PreconditionFailed,
            TooLarge,
            UnsupportedMedia,
            TooMany,
            StorageFull,
            Timeout,
            Unavailable,
        ),
    },
    openapi_extra=body(required=False, text=None, json=wire.NewMessage),
)
async def post_message(
    request: Request,
    id: SessionId,  # noqa: A002 - the name in the path
    me: Me,
    ticket: Idempotency,
    wait: Wait = "false",
    transcript: Annotated[bool, Query(description="With `wait`: also the transcript up to the reply.")] = False,
    delay: Delay = 0.0,
    accept: Accept = None,
    if_match: IfMatch = None,
    life: Life = None,
    on_disconnect: DisconnectChoice = None,
) -> Response:
    """Append a message to a session. Its turn runs even if the client does not wait for it.

    With `X-CFS-On-Disconnect: cancel`, a client that waits for the reply, or follows it, ends it by leaving.
    """
    chosen = media.choose(accept, (media.JSON, media.EVENTS))
    sessions = me.sessions
    sessions.require("write", id)
    is_shown = chosen == media.EVENTS or wait != "false"
    if is_shown:
        sessions.require("read_binary", id)
    if (bound := ticket.bound) is None:
        data = await request.body()
        submitted = await apart(request, partial(_read, data, request, sessions.limits))
        existing = sessions.find(id, "write")
        if submitted is not None and submitted.options.tools and existing and existing.settings.driver == "agent":
            raise Conflict(f"session {id!r} is answered by an agent, which has tools of its own")
        async with sessions.loaded(id):
            if if_match is not None:
                require_match_of(if_match, id, sessions)
            sessions.require_life(id, life)  # checked again: the session may have changed while the body was read
            if submitted is None:
                session = sessions.open(id)
                return _accepted(session, None, session.log.last, 0)
            session, turn, event = sessions.submit(id, replace(submitted, delay=0.0 if is_shown else delay))
            bound = BoundTurn(session.key, turn.id, event.number, len(turn.message.content.encode()))
            ticket.bind(bound)
    else:
        session = sessions.with_key(bound.session, "write", *(("read_binary",) if is_shown else ()))
        turn = await sessions.turn(session, bound.turn, bound.event - 1)
    left = partial(cancel_unless_ended, session, turn) if on_disconnect is OnDisconnect.CANCEL else None
    if chosen == media.EVENTS:
        view = SessionView(session, sessions)
        return me.stream(follow(session.log, bound.event - 1, view, turn), left=left)
    if wait != "false":
        seconds = me.wait_limit(None if wait == "true" else float(wait))
        with sessions.throughout(session, "read_binary"):
            result = await attend(request, _finished(session, turn, seconds), left)
        if not transcript:
            return as_json(reply(session, turn, result), headers={LIFE: session.nonce})
        async with sessions.loaded(session):
            await rendered(session.history, session.account.owner)
            return as_json(reply(session, turn, result, transcript=True), headers={LIFE: session.nonce})
    return _accepted(session, turn, bound.event, bound.size)


def _read(data: bytes, request: Request, limits: StoreLimits) -> TurnRequest | None:
    """Parse a body as a message; None if it is empty."""
    if not is_json(request):
        require_text(request)
        content = decode_message(data, limit=limits.message_bytes)
        return None if content is None else TurnRequest(wire.Message(role="user", content=content))
    new = parse(wire.NewMessage, data, most_values(limits))
    check_content(new.content, limit=limits.message_bytes)
    if (new.tool_calls or new.thinking is not None) and new.role != "assistant":
        what = "tool_calls" if new.tool_calls else "thinking"
        raise refusal(what, "only a message of the role `assistant` has it")
    # a tool may return an empty result
    has_other_content = new.tool_call_id is not None or new.tool_calls or new.thinking
    if not new.content.strip() and not has_other_content:
        return None
    if new.tool_call_id is not None and new.role != "tool":
        raise refusal("tool_call_id", "only a message of the role `tool` is the result of a call")
    generate = new.role == "user" if new.generate is None else new.generate
    message = wire.Message(
        role=new.role,
        content=new.content,
        tool_calls=new.tool_calls,
        tool_call_id=new.tool_call_id,
        name=new.name,
        thinking=new.thinking,
    )
    settings = wire.SettingsPatch(**new.settings.model_dump(exclude_unset=True))
    tools, choice = read_tools(new.tools, new.tool_choice)
    options = ReplyOptions(schema_of(new.response_format), new.logprobs, tools, choice)
    return TurnRequest(message, generate, settings, options)


async def _finished(session: Session, turn: Turn, seconds: float) -> TurnResult:
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.shield(turn.result)
    except TimeoutError:
        raise Timeout(
            f"the turn is not finished after {seconds:g} seconds; it goes on, and its events are at"
            f" {location(session.id)}/events",
            turn=turn.id,
        ) from None


def _accepted(session: Session, turn: Turn | None, event: int, size: int) -> Response:
    accepted = wire.Accepted(session=session.id, turn=turn.id if turn else None, event=event, accepted_bytes=size)
    return as_json(accepted, 202, {"Location": location(session.id), LIFE: session.nonce, "X-CFS-State": session.state})
