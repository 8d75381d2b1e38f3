"""What routes are given: their caller, with the gates that its grants open, and the parameters that many share."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Header, Path, Query, Request

from cfs.api import LIFE
from cfs.completions import ModelCard
from cfs.ids import check_id
from cfs.wire import ID_PATTERN
from cfs_server.access.auth import Principals
from cfs_server.access.principals import Principal
from cfs_server.completions.direct import Direct
from cfs_server.completions.gate import CompletionGate
from cfs_server.engine.interface import Engine, ModelInfo
from cfs_server.files import Files
from cfs_server.metrics import Metrics
from cfs_server.routes import convertors as convertors
from cfs_server.routes.conditions import require_life
from cfs_server.sessions.gate import SessionGate
from cfs_server.sessions.store import SessionStore
from cfs_server.settings import Settings
from cfs_server.streams import EventStream, Frames, Streams
from cfs_server.workspaces import Workspaces

CURSOR_PATTERN = r"^([0-9a-f]{8}-)?[0-9]{1,18}$"


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one application. Routes get a `Caller`; only what serves the operator gets this."""

    settings: Settings
    engine: Engine
    model: ModelInfo | None
    store: SessionStore
    workspaces: Workspaces
    principals: Principals
    metrics: Metrics
    streams: Streams
    direct: Direct
    started_at: float = field(default_factory=time.time)

    @property
    def model_card(self) -> ModelCard:
        """The model as completions name it."""
        name, length = (self.model.name, self.model.context_tokens) if self.model else ("unknown", 0)
        return ModelCard(id=name, created=int(self.started_at), max_model_len=length or None)


class Caller:
    """The principal behind one request, and what it may use."""

    __slots__ = ("_parts", "principal", "sessions")

    def __init__(self, principal: Principal, parts: Context) -> None:
        self.principal = principal
        self.sessions = SessionGate(parts.store, principal.handle, principal.account)
        self._parts = parts

    @property
    def files(self) -> Files:
        """The files that the principal may use."""
        me = self.principal
        return Files(me.handle, me.usage, me.limits.bytes, me.searches)

    @property
    def completions(self) -> CompletionGate:
        """What the principal may have the engine do."""
        parts, owner = self._parts, self.principal.account.owner
        return CompletionGate(parts.model_card, parts.engine, parts.direct, self.sessions, owner)

    def wait_limit(self, seconds: float | None) -> float:
        """Cut a wait to what one request may take."""
        most = self._parts.settings.max_wait
        return most if seconds is None else min(seconds, most)

    def stream(self, frames: Frames, close: Callable[[], Awaitable[None]] | None = None) -> EventStream:
        """Answer by a stream, which counts as one of the principal's; `close` ends what it shows."""
        return self._parts.streams.response(frames, self.principal, close)


# All dependencies are coroutines: FastAPI runs plain functions in threads.


async def _context(request: Request) -> Context:
    return cast("Context", request.app.state.cfs)


async def _caller(request: Request) -> Caller:
    return Caller(request.scope["cfs.principal"], request.app.state.cfs)


async def _sessions(request: Request) -> SessionGate:
    return (await _caller(request)).sessions


async def _session_id(
    sessions: Annotated[SessionGate, Depends(_sessions)],
    id: Annotated[  # noqa: A002 - the name in the path
        str,
        Path(
            description="Session id, percent-encoded; the '/' before a sub-session stays as it is.",  # S1
            json_schema_extra={"pattern": ID_PATTERN, "minLength": 1},
        ),
    ],
    life: Annotated[
        str | None,
        Header(
            alias=LIFE,
            include_in_schema=False,  # 410 is then an answer of every route: docs/api.md has it in one place
        ),
    ] = None,
) -> str:
    name = check_id(id)
    require_life(life, name, sessions)
    return name


Life = Annotated[str | None, Header(alias=LIFE, include_in_schema=False)]
Parts = Annotated[Context, Depends(_context)]
Me = Annotated[Caller, Depends(_caller)]
Sessions = Annotated[SessionGate, Depends(_sessions)]
SessionId = Annotated[str, Depends(_session_id)]
Seconds = Annotated[float, Query(ge=0, le=86_400, allow_inf_nan=False)]
Accept = Annotated[str | None, Header(include_in_schema=False)]
IfMatch = Annotated[
    str | None,
    Header(
        description="Go on only if one of these ETags names the present version.",  # H3
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(description="Answer 304 if one of these ETags names the present version.")  # H3
]
