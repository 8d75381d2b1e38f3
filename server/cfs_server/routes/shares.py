"""Shares: links that let others read a session, or write to it (G9)."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Response

from cfs import wire
from cfs.contract.ids import check_id
from cfs.errors import Forbidden, InvalidParameters, NotFound, StorageFull, TooLarge, UnsupportedMedia
from cfs_server.access.shares import OPERATIONS_OF
from cfs_server.http.bodies import json_body
from cfs_server.http.caller import AppContext, Me
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json

router = APIRouter(prefix="/v1/shares", tags=["shares"])

ShareId = Annotated[str, Path(description="Id of the share.", json_schema_extra={"pattern": "^[A-Za-z0-9_-]{1,64}$"})]


@router.post(
    "",
    status_code=201,
    responses={
        201: answer("Shared", json=wire.NewlyShared),
        **problems(InvalidParameters, NotFound, TooLarge, UnsupportedMedia, StorageFull),
    },
    openapi_extra=body(json=wire.NewShare),
)
async def share(
    parts: AppContext, me: Me, new: Annotated[wire.NewShare, Depends(json_body(wire.NewShare))]
) -> Response:
    """Make a link to a session and all below it, with a token of its own. It allows no more than the caller may do."""
    session = me.sessions.get(check_id(new.session), *sorted(OPERATIONS_OF[new.access]))
    if me.principal.is_share:
        raise Forbidden("a shared link cannot be shared further")
    headers = {"Cache-Control": "no-store"}
    if not parts.principals.closed:
        plain = wire.NewlyShared(id=None, token=None, path=f"/#conversation/{quote(session.id)}")
        return as_json(plain, 201, headers)
    created, token = parts.shares.create(me.principal, session, new.access, new.expires)
    return as_json(wire.NewlyShared(id=created.id, token=token, path=f"/#share={token}"), 201, headers)


@router.get("", responses={200: answer("The shares", json=wire.ShareList), **problems(InvalidParameters)})
async def shares(
    parts: AppContext, me: Me, session: Annotated[str, Query(description="The session that is shared.")]
) -> Response:
    """Return the caller's own shares of a session."""
    entries = [
        wire.ShareInfo(
            id=entry.id, session=entry.session, access=entry.access, created_at=entry.created, expires=entry.expires
        )
        for entry in parts.shares.of(me.principal, session)
    ]
    return as_json(wire.ShareList(shares=tuple(entries)), headers={"Cache-Control": "no-store"})


@router.delete("/{share}", status_code=204, responses={204: {"description": "Revoked"}, **problems(NotFound)})
async def revoke(parts: AppContext, me: Me, share: ShareId) -> Response:
    """Revoke a share of the caller. Its token is refused at once, and its connections end."""
    parts.shares.revoke(me.principal, share)
    return Response(status_code=204)
