"""What every route needs: the parts of the application, and the parameters that all sessions' routes share."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Header, Path, Query, Request

from cfs.wire import ID_PATTERN
from cfs_server.engine.interface import Engine, ModelInfo
from cfs_server.metrics import Metrics
from cfs_server.routes import convertors as convertors
from cfs_server.sessions.ids import check_id
from cfs_server.sessions.store import SessionStore
from cfs_server.settings import Settings
from cfs_server.streams import Streams

CURSOR_PATTERN = r"^([0-9a-f]{8}-)?[0-9]{1,18}$"


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one application."""

    settings: Settings
    engine: Engine
    model: ModelInfo | None
    store: SessionStore
    metrics: Metrics
    streams: Streams

    def wait_limit(self, seconds: float | None) -> float:
        """Cut a wait to what one request may take."""
        return self.settings.max_wait if seconds is None else min(seconds, self.settings.max_wait)


# All dependencies are coroutines: FastAPI runs plain functions in threads.


async def _context(request: Request) -> Context:
    return cast("Context", request.app.state.cfs)


async def _store(request: Request) -> SessionStore:
    return cast("Context", request.app.state.cfs).store


async def _session_id(
    id: Annotated[  # noqa: A002 - the name in the path
        str,
        Path(
            description="Session id (S1), percent-encoded; the '/' before a sub-session stays as it is.",
            json_schema_extra={"pattern": ID_PATTERN, "minLength": 1},
        ),
    ],
) -> str:
    return check_id(id)


Parts = Annotated[Context, Depends(_context)]
Store = Annotated[SessionStore, Depends(_store)]
SessionId = Annotated[str, Depends(_session_id)]
Seconds = Annotated[float, Query(ge=0, le=86_400, allow_inf_nan=False)]
Accept = Annotated[str | None, Header(include_in_schema=False)]
IfMatch = Annotated[
    str | None,
    Header(
        description="Go on only if one of these ETags names the present version (H3).",
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(description="Answer 304 if one of these ETags names the present version (H3).")
]
