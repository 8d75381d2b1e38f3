"""The server itself: the index, health, readiness, metrics, the caller's identity, and backups (H6)."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Response
from starlette.responses import PlainTextResponse, StreamingResponse

from cfs import wire
from cfs.errors import Conflict, Forbidden, InvalidParameters, NotAcceptable, StorageFull, Unavailable
from cfs_filesystem import OPERATIONS, FileSystemError
from cfs_server.backups import archive
from cfs_server.engine.contract.interface import ModelInfo
from cfs_server.http import negotiation as media
from cfs_server.http.caller import Accept, AppContext, Context, IfNoneMatch, Me
from cfs_server.http.errors import JSONLine
from cfs_server.http.metrics import CONTENT_TYPE
from cfs_server.http.openapi import answer, problems
from cfs_server.http.representations import as_json
from cfs_server.journal.journal import StoreFailed
from cfs_server.routes import dashboard
from cfs_server.sessions.maintenance import SCRATCH, describe
from cfs_server.workspaces.workspaces import Workspaces

router = APIRouter(tags=["server"])

VERSION = version("cfs-local")
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
    "backup": "/v1/backup",
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
        return PlainTextResponse(f"CFS {VERSION}\n{lines}")
    return JSONLine({"name": "cfs", "version": VERSION, **_PLACES})


@router.get("/healthz", responses={200: {"description": "The server lives", **_OBJECT}, **problems()})
async def healthz(parts: AppContext) -> Response:
    """Return 200 while the server runs. `store` changes when a restart has lost the sessions.

    `workspaces` is there if the files are in an object store: servers that share it return the same.
    """
    shared = parts.workspaces.identity
    files = {} if shared is None else {"workspaces": shared}
    return JSONLine({"status": "alive", "store": parts.store.bus.log.life, **files})


@router.get("/readyz", responses={200: {"description": "A turn would start now", **_OBJECT}, **problems(Unavailable)})
async def readyz(parts: AppContext) -> Response:
    """Return whether a message could be stored and a turn could start now, and the model."""
    stats = await parts.engine.stats()
    if (problem := parts.store.problem) is not None:
        raise Unavailable(problem, retry_after=1, model=_model(parts))
    if not parts.engine.ready or parts.store.draining:
        state = "stopping" if parts.store.draining else stats.state
        why = f": {stats.reason}" if stats.reason else ""
        raise Unavailable(f"the engine is {state}{why}", retry_after=1, model=_model(parts))
    return JSONLine({"status": "ready", "model": _model(parts), "restarts": stats.restarts})


@router.get("/health", responses={200: {"description": "A turn would start now", **_OBJECT}, **problems(Unavailable)})
async def health(parts: AppContext) -> Response:
    """Return the same as `/readyz`, at the path that vLLM and llama-server use and their routers ask."""
    return await readyz(parts)


@router.get(
    "/metrics",
    responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}, **problems(Forbidden)},
)
async def metrics(parts: AppContext, me: Me) -> Response:
    """Return all metrics for Prometheus. Requires the right to list everything."""
    if "/" not in me.principal.handle.scopes("list"):
        raise Forbidden("the figures are about all callers: they need a token that may list '/'")
    return Response(await parts.metrics.render(parts.store, parts.engine), media_type=CONTENT_TYPE)


def _model(parts: Context) -> dict[str, object] | None:
    if not parts.models:
        return None
    model = asdict(parts.models[0])
    return {name: value for name, value in model.items() if name not in ("loaded", "price")}


def _shown(model: ModelInfo) -> wire.ModelShown:
    return wire.ModelShown(
        name=model.name,
        embedded=model.embedded,
        context=model.context_tokens or None,
        price=model.price,
        notes=model.notes,
        loaded=model.loaded,
    )


@router.get(
    "/v1/backup",
    responses={
        200: {
            "description": "The file",
            "content": {archive.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(Forbidden, Conflict, StorageFull),
    },
)
async def backup(parts: AppContext, me: Me) -> Response:
    """Return a backup: a tar of all sessions, and of the workspaces with their versions. The server goes on meanwhile.

    Requires all rights on everything.
    """
    if any("/" not in me.principal.handle.scopes(operation) for operation in OPERATIONS):
        raise Forbidden("a backup contains the data of all callers: it needs a token with all operations on '/'")
    if parts.settings.databases:
        raise Conflict("the sessions are in PostgreSQL: back it up with pg_dump, or export sessions with `cfs export`")
    journal, file = parts.store.journal, parts.settings.store_file
    if journal is not None and journal.durable_store and file is None:
        raise Conflict("the sessions are in PostgreSQL: use pg_dump for a backup, or `cfs export` for a file of them")
    if journal is None or not journal.durable_store or file is None:
        raise Conflict("this server keeps sessions in memory only; `cfs export` writes them to a file")
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=f"{SCRATCH}-", dir=file.parent))
    try:
        await journal.backup(folder / archive.SESSIONS)
        copy = await asyncio.to_thread(_archived, folder, parts.workspaces)
    except (StoreFailed, OSError, FileSystemError) as error:
        raise StorageFull(f"the server cannot write a backup: {error}") from None
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)
    name = f"cfs-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar"
    headers = {"Content-Length": str(copy.size), "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(
        _pieces(copy), media_type=archive.MEDIA_TYPE, headers=headers | {"Cache-Control": "no-store"}
    )


def _archived(folder: Path, workspaces: Workspaces) -> archive.BackupArchive:
    """Add the workspaces to the copy of the sessions in a folder."""
    sessions = describe(folder / archive.SESSIONS).sessions
    return archive.BackupArchive(folder, sessions, workspaces.backup(folder / archive.VERSIONS))


async def _pieces(copy: archive.BackupArchive) -> AsyncIterator[bytes]:
    with copy:
        pieces = copy.pieces()
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece


@router.get("/v1/whoami", responses={200: answer("The caller", json=wire.WhoAmI), **problems()})
async def whoami(parts: AppContext, me: Me) -> Response:
    """Return the caller's name, grants, limits and usage, and the models."""
    principal, models = me.principal, tuple(map(_shown, parts.models))
    limits, account = principal.limits, principal.account
    spent = parts.store.spending.today(account)
    identity = wire.WhoAmI(
        name=principal.name,
        grants=tuple(
            wire.GrantInfo(prefix=grant["prefix"], ops=tuple(sorted(grant["ops"]))) for grant in principal.handle.grants
        ),
        limits=wire.Taken(
            sessions=limits.sessions,
            bytes=limits.bytes,
            streams=limits.streams,
            requests=limits.requests,
            daily_tokens=limits.daily_tokens,
            daily_cost=limits.daily_cost,
        ),
        usage=wire.Taken(
            sessions=account.held[0],
            bytes=account.held[1],
            streams=principal.traffic.streams,
            daily_tokens=spent.tokens,
            daily_cost=spent.cost,
        ),
        model=models[0] if models else None,
        models=models,
    )
    return as_json(identity, headers={"Cache-Control": "no-cache"})
