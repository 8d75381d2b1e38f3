"""Messages in the protocol of Anthropic, for any program that supports it (H4)."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from cfs.errors import CfsError, ModelNotFound
from cfs_server.engine.contract.interface import Delta, Finished
from cfs_server.http.bodies import apart, json_body
from cfs_server.http.caller import Me
from cfs_server.http.disconnects import attend
from cfs_server.http.generation import ERRORS, RECORDED_ERRORS, NamedSession, StartedCompletion, begin, frames_of, named
from cfs_server.http.idempotency import Idempotency
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json
from cfs_server.protocols import anthropic_replies as protocol
from cfs_server.protocols.anthropic_requests import (
    MessagesRequest,
    TokenCountRequest,
    conversation_of,
    read_request,
    tools_of,
)
from cfs_server.protocols.errors import anthropic_problem
from cfs_server.routes.completions import PlaceToCount

router = APIRouter(prefix="/v1/messages", tags=["anthropic"])


@router.post(
    "",
    responses={
        200: answer("The message, or its events", json=protocol.MessageReply, events=None),
        **problems(*RECORDED_ERRORS),
    },
    openapi_extra=body(json=MessagesRequest),
)
async def create_message(
    request: Request,
    payload: Annotated[MessagesRequest, Depends(json_body(MessagesRequest))],
    session: NamedSession,
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Answer a conversation as Anthropic does. With `X-CFS-Session`, that session records it as a turn.

    A message is cancelled when its client disconnects, unless `X-CFS-On-Disconnect` says otherwise for a turn.
    """
    items = await begin(request, me, ticket, session, payload.model, partial(read_request, payload))
    writer = protocol.MessageWriter(
        items.model,
        items.recorded,
        thinking=payload.shows_thinking,
        stops=payload.stop_sequences or (),
    )
    if not payload.stream:
        return await items.whole(request, _whole(writer, items))
    first = b"".join(map(_frame, writer.begin()))
    frames = frames_of(items, lambda item: _frames(writer, item), _failed, first=first)
    return await items.stream(request, me, frames)


async def _whole(writer: protocol.MessageWriter, items: StartedCompletion) -> str:
    return protocol.message_json(await writer.message(items))


def _frames(writer: protocol.MessageWriter, item: Delta | Finished) -> Iterator[bytes]:
    return map(_frame, writer.write(item))


def _frame(event: protocol.Event) -> bytes:
    return named(event["type"], json.dumps(event, ensure_ascii=False, separators=(",", ":")))


def _failed(error: CfsError) -> bytes:
    return named("error", json.dumps(anthropic_problem(error)))


@router.post(
    "/count_tokens",
    responses={200: answer("How many tokens", json=protocol.InputTokens), **problems(*ERRORS, ModelNotFound)},
    openapi_extra=body(json=TokenCountRequest),
)
async def count_message_tokens(
    request: Request,
    _: PlaceToCount,
    payload: Annotated[TokenCountRequest, Depends(json_body(TokenCountRequest))],
    me: Me,
) -> Response:
    """Return the number of tokens of the prompt for a conversation with tools. Nothing is generated."""
    gate = me.completions
    model = gate.choose(payload.model)
    messages = await apart(request, partial(conversation_of, payload, gate.limits))
    tools, choice = tools_of(payload)
    counts = await attend(request, gate.count((), messages, () if choice == "none" else tools, model))
    return as_json(protocol.InputTokens(input_tokens=counts.prompt_tokens or 0))
