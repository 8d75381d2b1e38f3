"""What routes are given: their caller, with the gates that its grants open, and the parameters that many share."""

import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Annotated, cast

from fastapi import Depends, Header, Path, Query, Request
from starlette.convertors import Convertor, register_url_convertor

from cfs.api import LIFE
from cfs.completions import ModelCard
from cfs.errors import Gone, PreconditionFailed
from cfs.ids import ROUTE_WORDS, check_id
from cfs.wire import ID_PATTERN
from cfs_server.access.auth import Principal, Principals
from cfs_server.completions.run import AuthorizedCompletions, EphemeralCompletions
from cfs_server.engine.interface import Engine, ModelInfo
from cfs_server.event_streams import EventStream, Frames, Streams
from cfs_server.file_service import Files
from cfs_server.metrics import Metrics
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from cfs_server.settings import Settings
from cfs_server.workspaces import Workspaces

# ETags and the requests that depend on them (H3; RFC 9110, 13).

_TAGS = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def view_etag(session: Session, sessions: AuthorizedSessions) -> str:
    """Name the present version of everything that the JSON of a session shows.

    Every change of a session is an event of its log, but for a new or a deleted child: so their number is in it too.
    """
    return f'"{session.nonce}-e{session.log.last}.{len(sessions.children(session))}"'


def content_etag(content: bytes) -> str:
    """Name a listing by what it shows; a count of changes would tell of sessions that the caller may not see."""
    return f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def session_headers(session: Session, etag: str) -> dict[str, str]:
    """Headers of every representation of a session."""
    return {
        "ETag": etag,
        "Last-Modified": http_date(session.updated_at),
        LIFE: session.nonce,
        "X-CFS-State": session.state,
        "Cache-Control": "no-cache",
        "Vary": "Accept",
    }


def require_life(life: str | None, session_id: str, sessions: AuthorizedSessions) -> None:
    """Raise `Gone` unless a session is the one that the caller has seen, which it names by its nonce (`X-CFS-Life`).

    Whoever may do nothing there learns nothing by this: the request is refused for that.
    """
    if life is None:
        return
    sessions.require_any(session_id)
    session = sessions.known(session_id)
    if session is None or session.nonce != life.strip():
        raise Gone(
            f"session {session_id!r} is not there any more as you knew it: it was deleted, or the server has restarted"
            " without it"
        )


def http_date(seconds: float) -> str:
    """Write a time as HTTP does."""
    return formatdate(seconds, usegmt=True)


def unchanged(if_none_match: str | None, etag: str) -> bool:
    """Whether the client has this version already (weak comparison)."""
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or etag in {tag for _, tag in _TAGS.findall(if_none_match)}


def matches(if_match: str, *etags: str) -> bool:
    """Whether the client means one of these versions (strong comparison)."""
    return if_match.strip() == "*" or not set(strong_tags(if_match)).isdisjoint(etags)


def strong_tags(header: str) -> list[str]:
    """Read the ETags that a header names, quoted; weak ones name no version (RFC 9110, 13.1.1)."""
    return [tag for weak, tag in _TAGS.findall(header) if not weak]


def require_match(if_match: str | None, session: Session, sessions: AuthorizedSessions) -> None:
    """Raise `PreconditionFailed` unless an `If-Match` that was sent names the session's text or its JSON as it is."""
    text, view = session.etag, view_etag(session, sessions)
    if if_match is not None and not matches(if_match, text, view):
        raise PreconditionFailed(f"session {session.id!r} has changed: its transcript is {text} now, its JSON {view}")


def require_match_of(if_match: str | None, session_id: str, sessions: AuthorizedSessions) -> None:
    """Do the same for a session to write to that may not exist: then no version matches."""
    if if_match is None:
        return
    session = sessions.find(session_id, "write")
    if session is None:
        raise PreconditionFailed(f"there is no session {session_id!r}, so no ETag matches")
    require_match(if_match, session, sessions)


# How a session's id is told apart from the route's words in a path (H1).
#
# Importing this module makes `{id:session}` known to the router.


class SessionIdConvertor(Convertor[str]):
    """The longest run of components whose first may be anything and whose others are no route words.

    So `/v1/sessions/a/b/events` is the stream of `a/b`, and `/v1/sessions/events` is the session `events`, whatever
    the order of the routes.
    """

    regex = rf"[^/]*(?:/(?!(?:{'|'.join(sorted(ROUTE_WORDS))})(?:/|$))[^/]*)*"

    def convert(self, value: str) -> str:
        """Take the text as it stands; `check_id` judges it."""
        return value

    def to_string(self, value: str) -> str:
        """Write it as it stands; its slashes are separators."""
        return value


register_url_convertor("session", SessionIdConvertor())


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
    completions: EphemeralCompletions
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
        self.sessions = AuthorizedSessions(parts.store, principal.authorization, principal.account)
        self._parts = parts

    @property
    def files(self) -> Files:
        """The files that the principal may use."""
        me = self.principal
        return Files(me.authorization, me.usage, me.limits.bytes, me.searches)

    @property
    def completions(self) -> AuthorizedCompletions:
        """What the principal may have the engine do."""
        parts, owner = self._parts, self.principal.account.owner
        return AuthorizedCompletions(parts.model_card, parts.engine, parts.completions, self.sessions, owner)

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


async def _sessions(request: Request) -> AuthorizedSessions:
    return (await _caller(request)).sessions


async def _session_id(
    sessions: Annotated[AuthorizedSessions, Depends(_sessions)],
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
AppContext = Annotated[Context, Depends(_context)]
Me = Annotated[Caller, Depends(_caller)]
Sessions = Annotated[AuthorizedSessions, Depends(_sessions)]
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
