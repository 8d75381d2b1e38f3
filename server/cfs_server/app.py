"""Builds the ASGI application from settings and an engine. There is no global state."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.routing import Mount, Route

from cfs_server.access.auth import Traffic
from cfs_server.config.settings import ServerSettings
from cfs_server.context import open_context
from cfs_server.dav import ROOT
from cfs_server.dav.paths import require_granted
from cfs_server.engine.contract.interface import Engine, ModelInfo
from cfs_server.http import errors, openapi
from cfs_server.http.caller import DavRoute, context_of
from cfs_server.http.disconnects import ClientLeft, nobody_listens
from cfs_server.http.idempotency import IdempotencyMiddleware
from cfs_server.http.middleware import RequestMiddleware
from cfs_server.journal.journal import Journal
from cfs_server.routes import (
    anthropic,
    completions,
    connections,
    conversations,
    costs,
    dashboard,
    events,
    files,
    health,
    imports,
    messages,
    ollama,
    past,
    questions,
    responses,
    sessions,
    shares,
    turns,
)
from cfs_server.sessions.store import Part, SessionStore
from cfs_server.workspaces.workspaces import Workspaces


def create_app(
    settings: ServerSettings,
    engine: Engine,
    model: ModelInfo | None = None,
    journal: Journal | None = None,
    workspaces: Workspaces | None = None,
    part: Part | None = None,
    traffic_of: Callable[[str], Traffic] | None = None,
    stores: Callable[[], Sequence[SessionStore]] | None = None,
) -> FastAPI:
    """Create the application for a started engine. Its lifespan is that of a context (see `open_context`)."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_context(settings, engine, model, journal, workspaces, part, traffic_of, stores) as context:
            app.state.cfs = context
            yield

    app = FastAPI(
        title="CFS",
        summary="The Computational File System: every conversation with a language model is a resource.",
        version=health.VERSION,
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from the network
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "auto_configure": False,
        },  # see cfs_server.sessions.tracing
    )
    interfaces = sessions, messages, events, turns, questions, completions, responses, conversations, anthropic, ollama
    for module in (*interfaces, past, imports, files, shares, costs, connections, dashboard, health):
        app.router.routes += module.router.routes  # `include_router` would build them anew, for each application
    app.router.routes += [dashboard.ROUTE, Route(ROOT, DavRoute()), Mount(ROOT, DavRoute())]
    errors.install(app)
    for left in (ClientLeft, ClientDisconnect):  # during a wait for the answer, or while the body is read
        app.add_exception_handler(left, nobody_listens)
    app.add_middleware(
        IdempotencyMiddleware, requests=lambda scope: context_of(scope).requests, patience=settings.max_wait
    )
    app.add_middleware(
        RequestMiddleware,
        put_checks={f"{ROOT}/": require_granted},
        body_bytes=settings.max_body_bytes,
        file_bytes=settings.max_file_bytes,
        allowed_hosts=settings.host_names,
    )
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]
    return app
