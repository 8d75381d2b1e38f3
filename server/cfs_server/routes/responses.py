"""Responses in the protocol of OpenAI, for any program that supports it; each stored one is a turn (H4)."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Literal

import structlog
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from cfs.completions import Recorded
from cfs.errors import AlreadyExists, CfsError, Conflict, Gone, InvalidRequest, NotFound
from cfs_server.completions.requests import refusal
from cfs_server.completions.stored import ResponseId, Stored
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.turns import TurnState
from cfs_server.engine.contract.interface import Delta, Finished
from cfs_server.http.bodies import apart, json_body
from cfs_server.http.caller import Caller, Me
from cfs_server.http.disconnects import attend
from cfs_server.http.generation import (
    RECORDED_ERRORS,
    NamedSession,
    StartedCompletion,
    begin_ephemeral,
    frames_of,
    named,
)
from cfs_server.http.idempotency import BoundTurn, Idempotency, Ticket
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json
from cfs_server.protocols import response_events as events
from cfs_server.protocols import responses as protocol
from cfs_server.protocols.conversations import ItemList, page_of, text_of
from cfs_server.protocols.response_events import ResponseWriter
from cfs_server.protocols.response_items import Item, ItemId, ItemReference, items_of, message_place

_log = structlog.get_logger(__name__)

router = APIRouter(prefix="/v1/responses", tags=["responses"])

_ANSWER = answer("The response, or its events", json=events.ResponseObject, events=None)

ResponseName = Annotated[
    str, Path(description="Id of a stored response.", json_schema_extra={"pattern": "^resp_[0-9a-f]{65,79}$"})
]
Order = Annotated[Literal["asc", "desc"], Query(description="From the oldest item on, or from the newest.")]
Limit = Annotated[int, Query(ge=1, le=100, description="Most items of a page.")]
After = Annotated[str | None, Query(description="Last id of the page before.")]


@router.post(
    "",
    responses={200: _ANSWER, **problems(*RECORDED_ERRORS, AlreadyExists)},
    openapi_extra=body(json=protocol.ResponsesRequest),
)
async def create_response(
    request: Request,
    payload: Annotated[protocol.ResponsesRequest, Depends(json_body(protocol.ResponsesRequest))],
    session: NamedSession,
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Answer as OpenAI's responses do. A stored response is a turn of a session, which `X-CFS-Session` may name.

    A response is cancelled when its client disconnects, unless it is made in the background.
    """
    begun, writer, response = await _begun(request, payload, session, me, ticket)
    if payload.background and not payload.stream and response is not None:
        await begun.close()
        return _json(await _now(me, response, payload))
    if not payload.stream:
        return await begun.whole(request, _whole(writer, begun))
    first = b"".join(map(_frame, writer.begin()))
    frames = frames_of(begun, lambda item: _frames(writer.write(item)), _failure_of(writer), first=first)
    return await begun.stream(request, me, frames, background=payload.background or False)


async def _begun(
    request: Request, payload: protocol.ResponsesRequest, session: str | None, me: Caller, ticket: Ticket
) -> tuple[StartedCompletion, ResponseWriter, Stored | None]:
    """Begin a response. A request that was carried out before begins nothing."""
    stored, gate = me.responses, me.completions
    chosen = gate.choose(payload.model)
    response: Stored | None
    if (bound := ticket.bound) is not None:
        name = ResponseId(bound.session, bound.turn, bound.event - 1)
        response = await stored.find(str(name), "write", "read_binary")
    else:

        def submitted(new: Stored, _: LoggedEvent) -> None:
            ticket.bind(BoundTurn(new.id.session, new.id.turn, new.id.event + 1))

        target = protocol.place_of(payload, session)
        whole = await _resolved(me, payload)
        spec = (await apart(request, partial(protocol.read_request, whole, gate.limits))).by(chosen)
        if payload.warnings:
            _log.info("responses.left_out", warnings=payload.warnings)
        spec, response = await stored.begin(spec, target, submitted)
        if response is None:
            if payload.background:
                raise refusal("background", "name a session that you may write to: the response must be stored")
            begun = await begin_ephemeral(me, spec)
            writer = ResponseWriter(f"resp_{uuid.uuid4().hex}", begun.model, int(time.time()), request=payload)
            return begun, writer, None
    return StartedCompletion(gate.pieces_of(response.session, response.turn)), _writer(me, response, payload), response


async def _resolved(me: Caller, payload: protocol.ResponsesRequest) -> protocol.ResponsesRequest:
    """Put stored items in the place of references to them. Raises `NotFound`."""
    if isinstance(payload.input, str) or not any(isinstance(item, ItemReference) for item in payload.input):
        return payload
    names = Counter(item.id for item in payload.input if isinstance(item, ItemReference))
    if twice := [name for name, count in names.items() if count > 1]:
        raise refusal("input", f"two references are to the item {twice[0][:80]!r}")
    items: list[Item] = []
    for item in payload.input:
        items += await _referred(me, item.id) if isinstance(item, ItemReference) else (item,)
    return payload.model_copy(update={"input": tuple(items)})


async def _referred(me: Caller, name: str) -> tuple[Item, ...]:
    where = ItemId.read(name)
    message = where and await me.responses.message(where.session, where.index)
    items = where.items(message) if where and message else None
    if items is None:
        raise NotFound(f"there is no item with the id {name[:80]!r}: it was not stored, or its session was changed")
    return items


def _writer(me: Caller, stored: Stored, payload: protocol.ResponsesRequest | None = None) -> ResponseWriter:
    recorded = Recorded(session=stored.session.id, turn=stored.turn.id)
    created_at = int(stored.turn.request.accepted_at)
    model = me.completions.name_of(stored.session, stored.turn)
    return ResponseWriter(
        str(stored.id),
        model,
        created_at,
        request=payload,
        recorded=recorded,
        location=lambda: message_place(stored.session.key, stored.reply_index),
    )


async def _now(me: Caller, stored: Stored, payload: protocol.ResponsesRequest | None = None) -> events.Event:
    """Return a response as it is now."""
    writer, turn = _writer(me, stored, payload), stored.turn
    failure = turn.result.result().failure if turn.result.done() else None
    if turn.result.done() and failure is None:
        return await writer.whole(me.completions.pieces_of(stored.session, turn).items)
    for piece in turn.said:
        _consume(writer.write(piece))
    if failure is not None:
        _consume(writer.fail(failure))
        return writer.response()
    return writer.response("queued" if turn.state is TurnState.QUEUED else "in_progress")


def _consume(pieces: Iterable[events.Event]) -> None:
    for _ in pieces:
        pass


async def _whole(writer: ResponseWriter, items: StartedCompletion) -> str:
    return text_of(await writer.whole(items))


def _json(response: events.Event) -> Response:
    return Response(text_of(response) + "\n", media_type="application/json")


def _frame(event: events.Event) -> bytes:
    return named(event["type"], text_of(event))


def _frames(pieces: Iterable[events.Event], after: int = -1) -> Iterator[bytes]:
    return (_frame(event) for event in pieces if event["sequence_number"] > after)


def _failure_of(writer: ResponseWriter, after: int = -1) -> Callable[[CfsError], bytes]:
    return lambda error: b"".join(_frames(writer.fail(error), after))


@router.get("/{response}", responses={200: _ANSWER, **problems(InvalidRequest, NotFound, Gone)})
async def get_response(
    response: ResponseName,
    me: Me,
    stream: Annotated[bool, Query(description="Send the events, and follow the response until it ends.")] = False,
    starting_after: Annotated[
        int, Query(ge=-1, le=2**53, description="With `stream`: the number of the last event that was seen.")
    ] = -1,
) -> Response:
    """Return a stored response as it is now, or its events from a number on."""
    stored = await me.responses.find(response, "read_binary")
    if not stream:
        return _json(await _now(me, stored))
    begun, writer = StartedCompletion(me.completions.pieces_of(stored.session, stored.turn)), _writer(me, stored)

    def write(item: Delta | Finished) -> Iterator[bytes]:
        return _frames(writer.write(item), starting_after)

    first = b"".join(_frames(writer.begin(), starting_after))
    return me.stream(frames_of(begun, write, _failure_of(writer, starting_after), first=first), begun.close)


@router.delete(
    "/{response}",
    responses={200: answer("Deleted", json=events.DeletedObject), **problems(NotFound, Gone, Conflict)},
)
async def delete_response(response: ResponseName, me: Me) -> Response:
    """Delete a response that is the only one of its session, with the session."""
    await me.responses.delete(response)
    return as_json(events.DeletedObject(id=response, object="response"))


@router.post(
    "/{response}/cancel",
    responses={200: answer("The response", json=events.ResponseObject), **problems(NotFound, Gone)},
)
async def cancel_response(request: Request, response: ResponseName, me: Me) -> Response:
    """Cancel a response that is in progress. One that has ended stays as it is."""
    stored = await attend(request, me.responses.cancel(response))
    return _json(await _now(me, stored))


@router.get(
    "/{response}/input_items",
    responses={200: answer("The items", json=ItemList), **problems(InvalidRequest, NotFound, Gone)},
)
async def list_input(
    response: ResponseName, me: Me, order: Order = "desc", limit: Limit = 20, after: After = None
) -> Response:
    """List the items that a response has added to its conversation before its answer."""
    key = ResponseId.read(response).session
    added = await me.responses.input_of(response)
    items = [item for at, message in added for item in items_of(message, message_place(key, at))]
    return as_json(page_of(items, order=order, after=after, limit=limit))
