"""Completions in the OpenAI protocol, for any program that supports it (H4)."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from functools import partial
from typing import Annotated, cast
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Depends, Header, Path, Request, Response

from cfs import completions as wire
from cfs.errors import (
    CfsError,
    Conflict,
    EngineError,
    Gone,
    InvalidIdentifier,
    InvalidRequest,
    NotFound,
    StorageFull,
    TooLarge,
    TooMany,
    Unavailable,
    UnsupportedMedia,
)
from cfs.ids import check_id
from cfs_server.completions.requests import messages_of, read_spec, tools_of
from cfs_server.completions.responses import Writer, chunk_json, completion_json, problem_for_clients
from cfs_server.completions.run import Items
from cfs_server.engine.interface import Delta, Finished
from cfs_server.event_streams import Frames
from cfs_server.idempotency import Bound, Idempotency
from cfs_server.openapi import answer, body, problems
from cfs_server.routes.http import Me, apart, as_json, attend, json_body

router = APIRouter(prefix="/v1", tags=["completions"])

_PATIENCE = 1.0
"""Seconds that a stream waits for its first piece before the status is sent. An earlier error gets its own status."""

_PLAIN = r"A-Za-z0-9_~!$&'()*+,;=:@\-"
"""Characters that a URL path may contain without an escape (RFC 3986, 3.3), except the dot."""
_NAME_PATTERN = rf"^[{_PLAIN}][{_PLAIN}.]{{0,62}}(/[A-Za-z0-9_-]{{1,64}}){{0,15}}$"
"""The pattern of names without an escape. The server validates longer ones."""
_MODEL_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._:-]{0,62}(/[A-Za-z0-9_-][A-Za-z0-9._:-]{0,62}){0,3}$"
_ENCODED = re.compile(rf"([{_PLAIN}./]|%[0-9A-Fa-f]{{2}})+")

_ERRORS = (InvalidRequest, TooLarge, UnsupportedMedia, EngineError, TooMany, Unavailable)


async def _session(
    name: Annotated[
        str | None,
        Header(
            alias="X-CFS-Session",
            description="Session that records the completion, percent-encoded; made if there is none.",
            json_schema_extra={"pattern": _NAME_PATTERN},
        ),
    ] = None,
) -> str | None:
    if name is None:
        return None
    if not _ENCODED.fullmatch(name):
        raise InvalidIdentifier(f"X-CFS-Session is percent-encoded, as in a URL; this is not: {name[:80]!r}")
    try:
        return check_id(unquote_to_bytes(name).decode())
    except UnicodeDecodeError:
        raise InvalidIdentifier("X-CFS-Session is not UTF-8 behind its escapes") from None


@router.post(
    "/chat/completions",
    responses={
        200: answer("The completion, or its chunks", json=wire.ChatCompletion, events=None),
        **problems(*_ERRORS, Conflict, Gone, NotFound, StorageFull),
    },
    openapi_extra=body(json=wire.ChatRequest),
)
async def complete(
    request: Request,
    asked: Annotated[wire.ChatRequest, Depends(json_body(wire.ChatRequest))],
    session: Annotated[str | None, Depends(_session)],
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Complete a conversation. With `X-CFS-Session`, that session records it as a turn.

    A completion is cancelled when its client disconnects. A turn of a session continues.
    """
    gate = me.completions
    if (bound := ticket.bound) is not None:
        found, recorded = await gate.resume(session or "", bound.session, bound.turn, bound.event - 1)
    else:
        spec = await apart(request, partial(read_spec, asked, gate.limits))
        found, recorded = await gate.begin(
            spec, session, lambda at, turn, event: ticket.bind(Bound(at.key, turn.id, event.number))
        )
    items, writer = _Begun(found), Writer(gate.model.id, recorded)
    try:
        if not asked.stream:
            text = completion_json(await attend(request, writer.completion(items)))
            await items.close()
            return Response(text + "\n", media_type="application/json")
        await attend(request, items.begin(_PATIENCE))
    except BaseException:
        await items.close()
        raise
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return me.stream(_frames(writer, items, usage=usage), items.close)


@router.get("/models", responses={200: answer("All models", json=wire.ModelList), **problems()})
async def models(me: Me) -> Response:
    """List the available models. There is one."""
    return as_json(wire.ModelList(data=(me.completions.model,)))


@router.get("/models/{model:path}", responses={200: answer("The model", json=wire.ModelCard), **problems(NotFound)})
async def model(
    model: Annotated[
        str, Path(description="Name of the model; it may hold slashes.", json_schema_extra={"pattern": _MODEL_PATTERN})
    ],
    me: Me,
) -> Response:
    """Return the description of a model."""
    card = me.completions.model
    if model != card.id:
        raise NotFound(f"there is no model {model!r} here; there is {card.id!r}")
    return as_json(card)


async def _place(me: Me) -> AsyncIterator[None]:
    """Reserve a place for token counting until the request is finished."""
    with me.completions.counting():
        yield


@router.post(
    "/tokens",
    responses={200: answer("How many tokens", json=wire.TokenCounts), **problems(*_ERRORS)},
    openapi_extra=body(required=False, json=wire.TokensRequest),
)
async def tokens(
    request: Request,
    _: Annotated[None, Depends(_place)],
    asked: Annotated[wire.TokensRequest, Depends(json_body(wire.TokensRequest))],
    me: Me,
) -> Response:
    """Return the number of tokens of texts, and of the prompt for a conversation with tools."""
    gate = me.completions
    messages = None
    if asked.messages is not None:
        messages = await apart(request, partial(messages_of, asked.messages, gate.limits))
    return as_json(await attend(request, gate.count(asked.texts, messages, tools_of(asked.tools))))


async def _frames(writer: Writer, items: AsyncIterable[Delta | Finished], *, usage: bool) -> Frames:
    """Yield a completion as Server-Sent Events. An error ends the stream as its last event."""
    try:
        yield _data(chunk_json(writer.first(), include_usage=usage))
        async for item in items:
            for chunk in writer.write(item):
                if text := chunk_json(chunk, include_usage=usage):
                    yield _data(text)
    except CfsError as error:
        yield _data(json.dumps(problem_for_clients(error)))
    else:
        yield _data(wire.DONE)


def _data(text: str | None) -> bytes:
    return f"data: {text}\n\n".encode()


class _Begun:
    """The pieces of a completion, which may begin before they are read."""

    def __init__(self, items: Items) -> None:
        self._items = cast("AsyncGenerator[Delta | Finished]", items)
        self._first: asyncio.Task[Delta | Finished] | None = None

    async def begin(self, seconds: float) -> None:
        """Wait at most `seconds` for the first piece. Raises the error that arrives in its place."""
        self._first = asyncio.ensure_future(anext(self._items))
        done, _ = await asyncio.wait((self._first,), timeout=seconds)
        for first in done:
            first.result()

    async def __aiter__(self) -> AsyncIterator[Delta | Finished]:
        if self._first is not None:
            yield await asyncio.shield(self._first)
        async for item in self._items:
            yield item

    async def close(self) -> None:
        """Close the iterator. Text that is not read is not generated."""
        if self._first is not None and not self._first.done():
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._items.aclose()
