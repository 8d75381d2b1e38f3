"""Which representation a client wants (RFC 9110, 12.5.1)."""

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from email.message import Message as MimeHeader
from email.utils import formatdate
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import quote

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Receive, Scope, Send

from cfs.api import LIFE
from cfs.completions import ModelCard
from cfs.errors import (
    Gone,
    InvalidRequest,
    NotAcceptable,
    PreconditionFailed,
    RangeNotSatisfiable,
    TooLarge,
    UnsupportedMedia,
)
from cfs.ids import ROUTE_WORDS, check_id
from cfs.wire import ID_PATTERN, Message, Reply, SessionDetail, SessionInfo, SessionTree
from cfs_server.access.auth import Principal, Principals
from cfs_server.completions.run import AuthorizedCompletions, EphemeralCompletions
from cfs_server.engine.interface import Engine, ModelInfo
from cfs_server.errors import invalid
from cfs_server.event_streams import EventStream, Frames, Streams
from cfs_server.file_service import Files
from cfs_server.metrics import Metrics
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.loop_bridge import AT_ONCE_BYTES, aside
from cfs_server.sessions.quotas import Limits
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from cfs_server.sessions.turns import Turn, TurnResult
from cfs_server.settings import Settings
from cfs_server.workspaces import Workspaces

# What routes are given: their caller, with the gates that its grants open, and the parameters that many share.

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


# Sessions as the wire shows them.

_SLICE = 256 << 10
_MESSAGES_AT_ONCE = 500
_MESSAGES = TypeAdapter(tuple[Message, ...])
_NO_HISTORY = b'"history":[]'
"""No text holds it: a quote within a text is written with a backslash."""


def info(session: Session, sessions: AuthorizedSessions) -> SessionInfo:
    """Describe a session without its messages."""
    return session.info(len(sessions.children(session)))


def detail(session: Session, sessions: AuthorizedSessions) -> SessionDetail:
    """Describe a session with its messages."""
    return SessionDetail(
        **dict(info(session, sessions)),
        history=session.history.messages,
        queue=tuple(turn.message for turn in session.queue),
        partial=session.partial,
        settings=session.settings,
    )


def detail_json(shown: SessionDetail) -> bytes:
    """Write it as JSON, some messages at a time: in a thread others get their turn in between."""
    if len(shown.history) <= _MESSAGES_AT_ONCE:
        return shown.model_dump_json().encode()
    pieces = [
        _MESSAGES.dump_json(shown.history[start : start + _MESSAGES_AT_ONCE])[1:-1]
        for start in range(0, len(shown.history), _MESSAGES_AT_ONCE)
    ]
    head, _, tail = shown.model_copy(update={"history": ()}).model_dump_json().encode().partition(_NO_HISTORY)
    return b"".join([head, _NO_HISTORY[:-1], b",".join(pieces), b"]", tail])


def tree(session: Session, sessions: AuthorizedSessions) -> SessionTree:
    """Describe a session and everything below it."""
    children = sessions.children(session)
    return SessionTree(**dict(session.info(len(children))), children=tuple(tree(child, sessions) for child in children))


def reply(session: Session, turn: Turn, result: TurnResult, *, transcript: bool = False) -> Reply:
    """Describe a finished turn; with the transcript up to its end if that is asked for."""
    return Reply(
        session=session.id,
        turn=turn.id,
        event=result.event,
        reply=result.reply,
        tool_calls=result.calls,
        transcript=session.history.up_to(result.messages) if transcript else None,
        finish_reason=result.reason,
        error=result.error,
        usage=result.usage,
        logprobs=turn.ranked or None,
    )


def location(session_id: str) -> str:
    """Path of a session: percent-encoded, but for the slashes of sub-sessions."""
    return f"/v1/sessions/{quote(session_id)}"


def as_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer by a wire model, written by pydantic at once."""
    return Response(model.model_dump_json(), status, headers, "application/json")


class LongText(Response):
    """A text that goes out slice by slice, so that a slow reader of 64 MB has one slice in its buffer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the body in slices of one copy."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), _SLICE):
            await send({"type": "http.response.body", "body": bytes(body[start : start + _SLICE]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# Waiting on behalf of a client that may leave (S7): then the wait ends at once, and nothing else does.

T = TypeVar("T")


class ClientLeft(Exception):
    """Nobody is there any more to hear the answer."""


async def attend(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await some work for as long as its client is connected; raises `ClientLeft`."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def nobody_listens(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the signature is Starlette's
    """End the request of a client that has left; what is sent is dropped."""
    return Response(status_code=499)


# A part of a content (RFC 9110, 14): one range of bytes; several at once are answered by the whole.

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)


def part_of(header: str | None, size: int) -> range | None:
    """Return which of `size` bytes are asked for; None for all of them.

    Raises `RangeNotSatisfiable` where there are none. What is no range of bytes is as if it were not there.
    """
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        if size == 0 and int(suffix) > 0:
            return None  # the last bytes of nothing are nothing: no error, and no range that could be named
        part = range(max(0, size - int(suffix)), size)
    else:
        part = range(int(first), min(size, int(last) + 1) if last else size)
        if last and int(last) < int(first):
            return None  # not a valid range: ignored
    if not part:
        raise RangeNotSatisfiable(f"there are {size} bytes; {header!r} asks for none of them")
    return part


# Reading bodies strictly: what the contract does not allow is refused, nothing is guessed or converted.

Model = TypeVar("Model", bound=BaseModel)
_T = TypeVar("_T")

_LEAST_VALUES = 100_000
_VALUES_A_MESSAGE = 8
_QUOTE = ord('"')
_TEXT_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[\[{,]', re.DOTALL)
_LONGEST_MARK = len("Infinity")
_MAYBE_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}")


def is_json(request: Request) -> bool:
    """Whether the body calls itself JSON."""
    media = _media(request)[0]
    return media == "application/json" or media.endswith("+json")


def json_body(model: type[Model]) -> Callable[[Request, Caller], Awaitable[Model]]:
    """Make the dependency that reads a JSON body; an empty one stands for `{}`."""

    async def read(request: Request, me: Me) -> Model:
        body = await request.body()
        if body and not is_json(request):
            raise UnsupportedMedia("this body must be JSON: send it with Content-Type: application/json")
        return await apart(request, partial(parse, model, body or b"{}", most_values(me.sessions.limits)))

    return read


async def apart(request: Request, work: Callable[[], _T]) -> _T:
    """Do what a request's body asks for: at once, or in a thread where the body is long."""
    return await aside(len(await request.body()), request.scope["cfs.principal"].name, work)


def most_values(limits: Limits) -> int:
    """Say how many values a long body in JSON may hold: enough for as many messages as a session may have."""
    return max(_LEAST_VALUES, _VALUES_A_MESSAGE * limits.messages)


def parse(model: type[Model], body: bytes, most: int) -> Model:
    """Read JSON as a wire model, without converting between types, and refuse numbers that JSON does not have.

    A parser reads a body in one piece, during which no other thread runs: so a long one may not hold many values.
    """
    if len(body) > AT_ONCE_BYTES:
        _check_values(body, most)
    try:
        if _may_not_be_finite(body):
            _check_finite(from_json(body, allow_inf_nan=False))
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        if problems[0]["type"] == "json_invalid":
            raise InvalidRequest(f"the body is no JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}") from None
        raise invalid([dict(problem) for problem in problems]) from None
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None


def require_text(request: Request) -> None:
    """Refuse a body that says it is something else than text in UTF-8.

    Any other type passes: curl calls what it is given by `-d` a form, and it is taken as the bytes that it is.
    """
    media, charset = _media(request)
    if media.startswith("multipart/"):
        raise UnsupportedMedia("a multipart form is not read here: send the text itself, or JSON")
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia(f"a text must be in UTF-8; this one is said to be in {charset[:40]!r}")


async def read_text(request: Request) -> str:
    """Read a body that is plain text in UTF-8, and nothing else."""
    if is_json(request):
        raise UnsupportedMedia("this body must be text: send it with Content-Type: text/plain")
    require_text(request)
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"a text must be UTF-8: {error.reason} at byte {error.start}") from None


def _media(request: Request) -> tuple[str, str]:
    header = MimeHeader()
    header["content-type"] = request.headers.get("content-type") or "text/plain"
    return header.get_content_type(), str(header.get_param("charset") or "").lower()


def _may_not_be_finite(body: bytes) -> bool:
    """Look for what may be no finite number, a piece at a time: no other thread runs while a pattern is looked for."""
    return any(
        _MAYBE_NOT_FINITE.search(body, start, start + AT_ONCE_BYTES + _LONGEST_MARK)
        for start in range(0, len(body), AT_ONCE_BYTES)
    )


def _check_values(body: bytes, most: int) -> None:
    """Raise `TooLarge` for too many values; what looks like one within a text is none."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= most:
        return
    values = (found for found in _TEXT_OR_VALUE.finditer(body) if body[found.start()] != _QUOTE)
    if next(islice(values, most, None), None) is not None:
        raise TooLarge(f"a body in JSON has {most} values at most; this one has more")


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(item)


JSON = "application/json"
TEXT = "text/plain"
EVENTS = "text/event-stream"
HTML = "text/html"


def choose(accept: str | None, offered: tuple[str, ...]) -> str:
    """Pick the offer that the client likes best; among equals the one it names most exactly, then our order.

    Raises `NotAcceptable` when it wants none of them.
    """
    if not accept or not accept.strip():
        return offered[0]
    ranges = [_parse(part) for part in accept.split(",") if part.strip()]
    ranked = [(*_rank(offer, ranges), -index, offer) for index, offer in enumerate(offered)]
    quality, _, _, best = max(ranked)
    if quality <= 0:
        raise NotAcceptable(f"this resource is available as {' or '.join(offered)}")
    return best


def _parse(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return media, _quality(value.strip())
    return media, 1.0


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


def _rank(offer: str, ranges: list[tuple[str, float]]) -> tuple[float, int]:
    """Quality and exactness of the most exact range that covers an offer."""
    main = offer.partition("/")[0]
    exactness = {offer: 2, f"{main}/*": 1, "*/*": 0}
    covering = [(exactness[media], quality) for media, quality in ranges if media in exactness]
    exact, quality = max(covering, default=(0, 0.0))
    return quality, exact
