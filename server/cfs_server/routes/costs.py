"""What was spent on models: by day, principal, session and model (H10)."""

from fastapi import APIRouter, Response

from cfs import wire
from cfs_server.http.caller import Me
from cfs_server.http.openapi import answer, problems
from cfs_server.http.representations import as_json

router = APIRouter(tags=["server"])


@router.get("/v1/costs", responses={200: answer("What was spent", json=wire.Costs), **problems()})
async def costs(me: Me) -> Response:
    """Return what the caller has spent on models in the last 92 days, the newest day first.

    A caller with the right to list everything gets what all callers have spent.
    """
    return as_json(wire.Costs(costs=tuple(me.costs)), headers={"Cache-Control": "no-cache"})
