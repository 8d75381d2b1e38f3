"""The index, health, readiness, metrics and the caller's identity (H6)."""

from dataclasses import asdict
from importlib.metadata import version

from fastapi import APIRouter, Response
from starlette.responses import JSONResponse, PlainTextResponse

from cfs import wire
from cfs.errors import Forbidden, InvalidParameters, NotAcceptable, Unavailable
from cfs_server.metrics import CONTENT_TYPE
from cfs_server.openapi import answer, problems
from cfs_server.routes import dashboard
from cfs_server.routes import http as media
from cfs_server.routes.http import Accept, AppContext, Context, IfNoneMatch, Me, as_json

router = APIRouter(tags=["server"])

_VERSION = version("cfs-local")
_PLACES = {
    "sessions": "/v1/sessions",
    "events": "/v1/events",
    "completions": "/v1/chat/completions",
    "models": "/v1/models",
    "files": "/v1/files",
    "whoami": "/v1/whoami",
    "api": "/openapi.json",
    "alive": "/healthz",
    "ready": "/readyz",
    "metrics": "/metrics",
}
_OBJECT = {"content": {"application/json": {"schema": {"type": "object"}}}}
_PAGE = {"text/plain": {"schema": {"type": "string"}}, "text/html": {"schema": {"type": "string"}}}


@router.get(
    "/",
    responses={
        200: {"description": "Where to go", "content": _OBJECT["content"] | _PAGE},
        **problems(NotAcceptable, InvalidParameters),
    },
)
async def index(accept: Accept = None, if_none_match: IfNoneMatch = None) -> Response:
    """Return the name of the server and the addresses of its interfaces. A browser gets the dashboard (D)."""
    chosen = media.choose(accept, (media.JSON, media.TEXT, media.HTML))
    if chosen == media.HTML:
        return dashboard.ASSETS[dashboard.PAGE].answer(if_none_match)
    if chosen == media.TEXT:
        lines = "".join(f"{path:16}{what}\n" for what, path in _PLACES.items())
        return PlainTextResponse(f"CFS {_VERSION}\n{lines}")
    return JSONResponse({"name": "cfs", "version": _VERSION, **_PLACES})


@router.get("/healthz", responses={200: {"description": "The server lives", **_OBJECT}, **problems()})
async def healthz(parts: AppContext) -> Response:
    """Return 200 while the server runs. `store` changes when a restart has lost the sessions."""
    return JSONResponse({"status": "alive", "store": parts.store.bus.log.life})


@router.get("/readyz", responses={200: {"description": "A turn would start now", **_OBJECT}, **problems(Unavailable)})
async def readyz(parts: AppContext) -> Response:
    """Return whether a turn could start now, and the model."""
    stats = await parts.engine.stats()
    if not parts.engine.ready or parts.store.draining:
        state = "stopping" if parts.store.draining else stats.state
        why = f": {stats.reason}" if stats.reason else ""
        raise Unavailable(f"the engine is {state}{why}", retry_after=1, model=_model(parts))
    return JSONResponse({"status": "ready", "model": _model(parts), "restarts": stats.restarts})


@router.get(
    "/metrics",
    responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}, **problems(Forbidden)},
)
async def metrics(parts: AppContext, me: Me) -> Response:
    """Return all metrics for Prometheus. Requires the right to list everything."""
    if "/" not in me.principal.handle.scopes("list"):
        raise Forbidden("the figures are about everybody: they need a token that may list '/'")
    return Response(await parts.metrics.render(parts.store, parts.engine), media_type=CONTENT_TYPE)


def _model(parts: Context) -> dict[str, object] | None:
    return asdict(parts.model) if parts.model else None


@router.get("/v1/whoami", responses={200: answer("The caller", json=wire.WhoAmI), **problems()})
async def whoami(me: Me) -> Response:
    """Return the caller's name, grants, limits and usage."""
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
