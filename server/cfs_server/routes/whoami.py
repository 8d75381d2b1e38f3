"""Who the caller is to the server (G9)."""

from fastapi import APIRouter, Response

from cfs import wire
from cfs_server.openapi import answer, problems
from cfs_server.routes.deps import Me
from cfs_server.routes.http import as_json

router = APIRouter(prefix="/v1/whoami", tags=["server"])


@router.get("", responses={200: answer("The caller", json=wire.WhoAmI), **problems()})
async def whoami(me: Me) -> Response:
    """Say who the caller is, what it may do, how much it may take and how much it has taken."""
    principal = me.principal
    limits, account = principal.limits, principal.account
    found = wire.WhoAmI(
        name=principal.name,
        grants=tuple(
            wire.GrantInfo(prefix=grant["prefix"], ops=tuple(sorted(grant["ops"]))) for grant in principal.handle.grants
        ),
        limits=wire.Taken(
            sessions=limits.sessions, bytes=limits.bytes, streams=limits.streams, requests=limits.requests
        ),
        usage=wire.Taken(sessions=account.sessions, bytes=account.bytes, streams=principal.streams),
    )
    return as_json(found, headers={"Cache-Control": "no-cache"})
