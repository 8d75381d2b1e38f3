"""Import: create many sessions by one request, as `cfs import` does (S14)."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from cfs import wire
from cfs.contract.ids import check_id
from cfs.errors import CfsError, InvalidIdentifier, InvalidParameters, NotFound, TooLarge, UnsupportedMedia
from cfs_server.domain.transcripts import SizedMessages, history_of
from cfs_server.http.bodies import apart, json_body
from cfs_server.http.caller import Sessions
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json
from cfs_server.sessions.authorized import AuthorizedSessions

router = APIRouter(prefix="/v1/imports", tags=["sessions"])

_AT_ONCE = 50
"""Sessions after which other requests get their turn."""


@router.post(
    "",
    responses={
        200: answer("What became of each session", json=wire.ImportResult),
        **problems(InvalidIdentifier, InvalidParameters, NotFound, TooLarge, UnsupportedMedia),
    },
    openapi_extra=body(json=wire.Import),
)
async def import_sessions(
    request: Request, batch: Annotated[wire.Import, Depends(json_body(wire.Import))], sessions: Sessions
) -> Response:
    """Create sessions with their histories, parents first. If anything in the body is not valid, none is created."""
    for new in batch.sessions:
        sessions.require("write", check_id(new.id))
    histories = await apart(request, lambda: [_weighed(new, sessions.limits.messages) for new in batch.sessions])
    results = []
    for number, (new, history) in enumerate(zip(batch.sessions, histories, strict=True), 1):
        results.append(await _import(sessions, new, history, check=batch.check))
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return as_json(wire.ImportResult(results=tuple(results)))


def _weighed(new: wire.NewSession, limit: int) -> SizedMessages | CfsError:
    try:
        return history_of(new, limit)
    except TooLarge as error:
        return error


async def _import(
    sessions: AuthorizedSessions, new: wire.NamedSession, history: SizedMessages | CfsError, *, check: bool
) -> wire.Imported:
    name = new.id
    result = partial(wire.Imported, id=name)
    existing = sessions.known(name)
    if existing is not None:
        if isinstance(history, CfsError) or not sessions.may("read_binary", name):
            return result(outcome="other")
        async with sessions.loaded(existing):
            same = existing.history.messages[: len(history.messages)] == history.messages
        return result(outcome="same" if same else "other")
    if not sessions.is_free(name):
        return result(outcome="elsewhere")
    if isinstance(history, CfsError):
        return result(outcome="refused", error=history.detail)
    if check:
        return result(outcome="absent")
    try:
        sessions.create(name, new.settings, history, new.tokens, new.cost)
    except CfsError as error:
        return result(outcome="refused", error=error.detail)
    return result(outcome="created")
