"""Connections: the models of the server's file, and those that it could use. For administrators only."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from cfs import wire
from cfs.errors import Conflict, Forbidden, InvalidParameters, NotFound, TooLarge, UnsupportedMedia
from cfs_filesystem import OPERATIONS
from cfs_server.http.bodies import json_body
from cfs_server.http.caller import AppContext, Me
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json

router = APIRouter(prefix="/v1", tags=["connections"])

_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._:-]{0,62}(/[A-Za-z0-9_-][A-Za-z0-9._:-]{0,62}){0,3}$"
_FRESH = {"Cache-Control": "no-store"}


def _require_all_rights(me: Me) -> None:
    if any("/" not in me.principal.handle.scopes(operation) for operation in OPERATIONS):
        raise Forbidden("models are connected for all callers: that needs a token with all operations on '/'")


router.dependencies.append(Depends(_require_all_rights))


@router.get(
    "/connections",
    responses={200: answer("The connections", json=wire.ConnectionList), **problems(Forbidden, Conflict)},
)
async def connections(parts: AppContext) -> Response:
    """List the models of the server's file. It is read again if it has changed. Requires all rights on everything."""
    return as_json(await parts.connections.list(), headers=_FRESH)


@router.post(
    "/connection-search",
    responses={200: answer("What was found", json=wire.CandidateList), **problems(Forbidden, Conflict)},
)
async def search(parts: AppContext) -> Response:
    """Find servers of models, keys in the environment and GGUF files, and try each with one short request.

    This may take a minute. The server looks on its own machine and in its own environment. No key is returned.
    """
    return as_json(await parts.connections.search(), headers=_FRESH)


@router.post(
    "/connections",
    responses={
        200: answer("The connections", json=wire.ConnectionList),
        **problems(Forbidden, Conflict, InvalidParameters, TooLarge, UnsupportedMedia),
    },
    openapi_extra=body(json=wire.NewConnections),
)
async def connect(
    parts: AppContext, new: Annotated[wire.NewConnections, Depends(json_body(wire.NewConnections))]
) -> Response:
    """Connect models that the last search has found working. They answer from now on, and after a restart."""
    return as_json(await parts.connections.connect(new.names, new.default), headers=_FRESH)


@router.delete(
    "/connections/{model:path}",
    status_code=204,
    responses={204: {"description": "Disconnected"}, **problems(Forbidden, Conflict, NotFound)},
)
async def disconnect(
    parts: AppContext,
    model: Annotated[
        str, Path(description="Name of the model; it may hold slashes.", json_schema_extra={"pattern": _PATTERN})
    ],
) -> Response:
    """Take a model out of the server's file. Its running turns go on."""
    await parts.connections.disconnect(model)
    return Response(status_code=204)
