"""Shared parts of the routes: dependencies, ETags, bodies, ranges, waits and representations."""

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from email.message import Message as MimeHeader
from email.utils import formatdate, parsedate_to_datetime
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
    InvalidRequest,
    NotAcceptable,
    PreconditionFailed,
    RangeNotSatisfiable,
    TooLarge,
    UnsupportedMedia,
)
from cfs.ids import ROUTE_WORDS, check_id
from cfs.wire import ID_PATTERN, Message, Question, Reply, SessionDetail, SessionInfo, SessionTree
from cfs_server.access.auth import Principal, Principals
from cfs_server.access.shares import Shares
from cfs_server.completions.run import AuthorizedCompletions, EphemeralCompletions
from cfs_server.completions.stored import StoredResponses, UnnamedSessions
from cfs_server.connect.manager import ModelConnections
from cfs_server.engine.interface import Engine, HasModels, ModelInfo
from cfs_server.errors import invalid
from cfs_server.event_streams import EventStream, Frames, Streams
from cfs_server.file_service import Files
from cfs_server.idempotency import Idempotency, Requests
from cfs_server.markup import Renderer
from cfs_server.metrics import Metrics
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.loop_bridge import AT_ONCE_BYTES, aside
from cfs_server.sessions.questions import Question as AskedQuestion
from cfs_server.sessions.questions import open_questions
from cfs_server.sessions.quotas import Limits
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from cfs_server.sessions.turns import Turn, TurnResult
from cfs_server.settings import Settings
from cfs_server.workspaces import Workspaces

# Dependencies of routes: the caller with its authorized interfaces, and shared parameters.

# ETags and conditional requests (H3; RFC 9110, 13).

_TAGS = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def view_etag(session: Session, sessions: AuthorizedSessions) -> str:
    """Return the ETag of everything that the JSON of a session shows.

    Each change of a session is an event of its log, except a new or deleted child. The ETag therefore contains the
    number of children too.
    """
    return f'"{session.nonce}-e{session.log.last}.{len(sessions.children(session))}"'


def content_etag(content: bytes) -> str:
    """Return the ETag of a listing, from its content. A count of changes would reveal hidden sessions."""
    return f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def session_headers(session: Session, etag: str) -> dict[str, str]:
    """Return the headers of every representation of a session."""
    return {
        "ETag": etag,
        "Last-Modified": http_date(session.updated_at),
        LIFE: session.nonce,
        "X-CFS-State": session.state,
        "Cache-Control": "no-cache",
        "Vary": "Accept",
    }


def require_life(life: str | None, session_id: str, sessions: AuthorizedSessions) -> None:
    """Raise a kind of `Gone` unless the session is the one that the caller has seen (`X-CFS-Life`)."""
    if life is not None:
        sessions.require_life(session_id, life.strip())


def http_date(seconds: float) -> str:
    """Format a time as an HTTP date."""
    return formatdate(seconds, usegmt=True)


def seconds_of(date: str | None) -> float | None:
    """Parse an HTTP date; None for no date, or one that is not valid, which is ignored (RFC 9110, 13.1.4)."""
    if date is None:
        return None
    try:
        parsed = parsedate_to_datetime(date)
        return None if parsed.tzinfo is None else parsed.timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def unchanged(if_none_match: str | None, etag: str) -> bool:
    """Return whether the client already has this version (weak comparison)."""
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or etag in {tag for _, tag in _TAGS.findall(if_none_match)}


def matches(if_match: str, *etags: str) -> bool:
    """Return whether `If-Match` contains one of these ETags (strong comparison)."""
    return if_match.strip() == "*" or not set(strong_tags(if_match)).isdisjoint(etags)


def strong_tags(header: str) -> list[str]:
    """Return the strong ETags of a header, quoted. Weak ones are ignored (RFC 9110, 13.1.1)."""
    return [tag for weak, tag in _TAGS.findall(header) if not weak]


def require_match(if_match: str | None, session: Session, sessions: AuthorizedSessions) -> None:
    """Raise `PreconditionFailed` if `If-Match` is sent without the current ETag of the text or of the JSON."""
    text, view = session.etag, view_etag(session, sessions)
    if if_match is not None and not matches(if_match, text, view):
        raise PreconditionFailed(f"session {session.id!r} has changed: its transcript is {text} now, its JSON {view}")


def require_match_of(if_match: str | None, session_id: str, sessions: AuthorizedSessions) -> None:
    """Do the same for a session to write to. If it does not exist, no ETag matches."""
    if if_match is None:
        return
    session = sessions.find(session_id, "write")
    if session is None:
        raise PreconditionFailed(f"there is no session {session_id!r}, so no ETag matches")
    require_match(if_match, session, sessions)


# How a path is split into a session id and words of the route (H1).
#
# Importing this module registers `{id:session}` with the router.


class SessionIdConvertor(Convertor[str]):
    """The longest sequence of path components in which only the first may be a word of a route.

    So `/v1/sessions/a/b/events` is the stream of `a/b`, and `/v1/sessions/events` is the session `events`. The order of
    the routes does not matter.
    """

    regex = rf"[^/]*(?:/(?!(?:{'|'.join(sorted(ROUTE_WORDS))})(?:/|$))[^/]*)*"

    def convert(self, value: str) -> str:
        """Return the text unchanged. `check_id` validates it."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text unchanged. Its slashes are separators."""
        return value


register_url_convertor("session", SessionIdConvertor())


CURSOR_PATTERN = r"^([0-9a-f]{8}(\.[0-9a-f]{8})?-)?[0-9]{1,18}$"


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one application. Most routes get a `Caller`; only routes for the operator get this."""

    settings: Settings
    engine: Engine
    model: ModelInfo | None
    store: SessionStore
    workspaces: Workspaces
    principals: Principals
    metrics: Metrics
    streams: Streams
    completions: EphemeralCompletions
    requests: Requests
    renderer: Renderer
    shares: Shares
    connections: ModelConnections
    started_at: float = field(default_factory=time.time)
    unnamed: UnnamedSessions = field(default_factory=UnnamedSessions)

    @property
    def models(self) -> tuple[ModelInfo, ...]:
        """All models as they are now, the default first."""
        if isinstance(self.engine, HasModels):
            return self.engine.infos()
        return () if self.model is None else (self.model,)

    @property
    def model_cards(self) -> tuple[ModelCard, ...]:
        """The models as completions show them, the default first."""
        return tuple(self._card(model) for model in self.models) or (
            ModelCard(id="unknown", created=int(self.started_at)),
        )

    def _card(self, model: ModelInfo) -> ModelCard:
        return ModelCard(
            id=model.name,
            created=int(self.started_at),
            max_model_len=model.context_tokens or None,
            parameters=model.parameters or None,
            embedded=model.embedded,
            has_chat_template=model.has_chat_template if model.loaded else None,
            notes=model.notes,
            loaded=model.loaded,
            price=model.price,
        )


class Caller:
    """The principal of one request, and the interfaces it may use."""

    __slots__ = ("_parts", "principal", "sessions")

    def __init__(self, principal: Principal, parts: Context, query: Mapping[str, str]) -> None:
        """Authorize a request. Raises `InvalidParameters` if its query has another `look_alike` than `allow`."""
        self.principal = principal
        look_alike = query.get("look_alike")
        if look_alike not in (None, "allow"):
            raise invalid([{"loc": ("query", "look_alike"), "msg": "the only value is 'allow'"}])
        self.sessions = AuthorizedSessions(
            parts.store, principal.authorization, principal.account, look_alikes=look_alike is not None
        )
        self._parts = parts

    @property
    def files(self) -> Files:
        """The files that the principal may use."""
        me = self.principal
        return Files(me.authorization, me.usage, me.limits.bytes, me.searches, self.sessions)

    @property
    def completions(self) -> AuthorizedCompletions:
        """The completions that the principal may request."""
        parts, owner = self._parts, self.principal.account.owner
        return AuthorizedCompletions(parts.model_cards, parts.engine, parts.completions, self.sessions, owner)

    @property
    def responses(self) -> StoredResponses:
        """The stored responses that the principal may use."""
        return StoredResponses(self.sessions, self._parts.unnamed)

    @property
    def has_token(self) -> bool:
        """Whether the server requires tokens, so that it can tell callers apart."""
        return self._parts.principals.closed

    def wait_limit(self, seconds: float | None) -> float:
        """Limit a wait to the maximum of one request."""
        most = self._parts.settings.max_wait
        return most if seconds is None else min(seconds, most)

    def stream(
        self,
        frames: Frames,
        close: Callable[[], Awaitable[None]] | None = None,
        left: Callable[[], None] | None = None,
        *,
        lines: bool = False,
    ) -> EventStream:
        """Return a stream of events, or of lines of JSON, that counts for the principal.

        `close` ends its source. `left` is called if the client disconnects before the end.
        """
        return self._parts.streams.response(frames, self.principal, close, left, lines=lines)


# All dependencies are coroutines, because FastAPI runs plain functions in threads.


async def _context(request: Request) -> Context:
    return cast("Context", request.app.state.cfs)


def settings_of(request: Request) -> Settings:
    """Return the server's settings."""
    context: Context = request.app.state.cfs
    return context.settings


async def _caller(request: Request) -> Caller:
    return Caller(request.scope["cfs.principal"], request.app.state.cfs, request.query_params)


async def _sessions(request: Request) -> AuthorizedSessions:
    return (await _caller(request)).sessions


async def _session_id(
    sessions: Annotated[AuthorizedSessions, Depends(_sessions)],
    ticket: Idempotency,
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
            include_in_schema=False,  # every route can return 410; docs/api.md describes it once
        ),
    ] = None,
) -> str:
    name = check_id(id)
    if ticket.bound is None:  # a request that was carried out is answered even if its session has another name now
        require_life(life, name, sessions)
    return name


Life = Annotated[str | None, Header(alias=LIFE, include_in_schema=False)]
AppContext = Annotated[Context, Depends(_context)]
Me = Annotated[Caller, Depends(_caller)]
Sessions = Annotated[AuthorizedSessions, Depends(_sessions)]
SessionId = Annotated[str, Depends(_session_id)]
Seconds = Annotated[float, Query(ge=0, le=86_400, allow_inf_nan=False)]
Delay = Annotated[
    float,
    Query(
        ge=0,
        le=10,
        description="Seconds until a turn that this starts begins, unless somebody waits for it: time to delete the"
        " session again.",
    ),
]
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


# Sessions in their wire format.

_SLICE = 256 << 10
_MESSAGES_AT_ONCE = 500
_MESSAGES = TypeAdapter(tuple[Message, ...])
_NO_HISTORY = b'"history":[]'
"""This cannot occur inside a text, where a quote is written with a backslash."""


def info(session: Session, sessions: AuthorizedSessions) -> SessionInfo:
    """Return a session without its messages. Its title is a part of them, and its origin the name of another one."""
    found = session.info(len(sessions.children(session)))
    if not sessions.may("read_binary", session.id):
        return found.model_copy(update={"title": None, "origin": None})
    if session.origin is not None and not sessions.may("read_binary", session.origin.session):
        return found.model_copy(update={"origin": None})
    return found


def detail(session: Session, sessions: AuthorizedSessions) -> SessionDetail:
    """Return a session with its messages."""
    return SessionDetail(
        **dict(info(session, sessions)),
        history=session.history.messages,
        times=session.history.times,
        queue=tuple(turn.message for turn in session.queue),
        partial=session.partial,
        settings=session.settings,
        questions=tuple(map(question, open_questions(session.questions))),
    )


def question(found: AskedQuestion) -> Question:
    """Return a question of an agent."""
    return Question(**asdict(found))


def detail_json(shown: SessionDetail) -> bytes:
    """Serialize to JSON, a few messages at a time, so that other threads can run in between."""
    if len(shown.history) <= _MESSAGES_AT_ONCE:
        return shown.model_dump_json().encode() + b"\n"
    pieces = [
        _MESSAGES.dump_json(shown.history[start : start + _MESSAGES_AT_ONCE])[1:-1]
        for start in range(0, len(shown.history), _MESSAGES_AT_ONCE)
    ]
    head, _, tail = shown.model_copy(update={"history": ()}).model_dump_json().encode().partition(_NO_HISTORY)
    return b"".join([head, _NO_HISTORY[:-1], b",".join(pieces), b"]", tail, b"\n"])


def tree(session: Session, sessions: AuthorizedSessions) -> SessionTree:
    """Return a session and everything below it."""
    children = sessions.children(session)
    return SessionTree(**dict(info(session, sessions)), children=tuple(tree(child, sessions) for child in children))


def reply(session: Session, turn: Turn, result: TurnResult, *, transcript: bool = False) -> Reply:
    """Return a finished turn, on request with the transcript up to its end."""
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
    """Return the path of a session, percent-encoded except the slashes of sub-sessions."""
    return f"/v1/sessions/{quote(session_id)}"


def as_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with a wire model, serialized by pydantic."""
    return Response(model.model_dump_json() + "\n", status, headers, "application/json")


class LongText(Response):
    """A text that is sent in slices. A slow reader of 64 MB has only one slice in its buffer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the body in slices, without copying the whole."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body), _SLICE):
            await send({"type": "http.response.body", "body": bytes(body[start : start + _SLICE]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# Waits on behalf of a client that may disconnect (S7). Only the wait ends then; `routes.disconnects` ends turns.

T = TypeVar("T")


class ClientLeft(Exception):
    """The client has disconnected."""


async def attend(request: Request, work: Coroutine[Any, Any, T], left: Callable[[], None] | None = None) -> T:
    """Await work while its client is connected. Calls `left` and raises `ClientLeft` when the client disconnects."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if left is not None:
            left()
        raise ClientLeft
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def nobody_listens(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the signature is Starlette's
    """End the request of a client that has disconnected. The response is dropped."""
    return Response(status_code=499)


# Ranges (RFC 9110, 14). One byte range is supported; a request for several gets the whole content.

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)


def part_of(header: str | None, size: int) -> range | None:
    """Return the requested range of `size` bytes; None for all bytes.

    Raises `RangeNotSatisfiable` if the range is empty. An invalid header is ignored.
    """
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        if size == 0 and int(suffix) > 0:
            return None  # an empty content has no last bytes: no error, and no valid range
        part = range(max(0, size - int(suffix)), size)
    else:
        part = range(int(first), min(size, int(last) + 1) if last else size)
        if last and int(last) < int(first):
            return None  # invalid: ignored
    if not part:
        raise RangeNotSatisfiable(f"there are {size} bytes; {header!r} asks for none of them")
    return part


# Strict reading of bodies: input outside the contract is refused. Nothing is guessed or converted.

Model = TypeVar("Model", bound=BaseModel)
_T = TypeVar("_T")

_LEAST_VALUES = 100_000
_VALUES_A_MESSAGE = 8
_QUOTE = ord('"')
_TEXT_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[\[{,]', re.DOTALL)
_LONGEST_MARK = len("Infinity")
_MAYBE_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}")


def is_json(request: Request) -> bool:
    """Return whether the content type of the body is JSON."""
    media = _media(request)[0]
    return media == "application/json" or media.endswith("+json")


def json_body(model: type[Model], *, any_media: bool = False) -> Callable[[Request, Caller], Awaitable[Model]]:
    """Return a dependency that reads a JSON body. An empty body means `{}`.

    `any_media`: the content type does not matter, as in protocols whose clients send JSON without naming it.
    """

    async def read(request: Request, me: Me) -> Model:
        body = await request.body()
        if body and not any_media and not is_json(request):
            raise UnsupportedMedia("this body must be JSON: send it with Content-Type: application/json")
        return await apart(request, partial(parse, model, body or b"{}", most_values(me.sessions.limits)))

    return read


async def apart(request: Request, work: Callable[[], _T]) -> _T:
    """Run work on a request's body: on the loop, or in a thread if the body is long."""
    return await aside(len(await request.body()), request.scope["cfs.principal"].name, work)


def most_values(limits: Limits) -> int:
    """Return how many values a long JSON body may contain: enough for the maximum number of messages."""
    return max(_LEAST_VALUES, _VALUES_A_MESSAGE * limits.messages)


def parse(model: type[Model], body: bytes, most: int) -> Model:
    """Parse JSON as a wire model, without type conversion. Refuse numbers that JSON does not have.

    The parser blocks all other threads while it reads a body. The number of values in a long body is therefore limited.
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
    """Refuse a multipart form and a body whose declared charset is not UTF-8.

    Other types are accepted and read as bytes: `curl -d` declares its data as a form.
    """
    media, charset = _media(request)
    if media.startswith("multipart/"):
        raise UnsupportedMedia("a multipart form is not read here: send the text itself, or JSON")
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia(f"a text must be in UTF-8; this one is said to be in {charset[:40]!r}")


async def read_text(request: Request) -> str:
    """Read a body of plain UTF-8 text."""
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
    """Search for possible non-finite numbers, one piece at a time: a regular expression blocks other threads."""
    return any(
        _MAYBE_NOT_FINITE.search(body, start, start + AT_ONCE_BYTES + _LONGEST_MARK)
        for start in range(0, len(body), AT_ONCE_BYTES)
    )


def _check_values(body: bytes, most: int) -> None:
    """Raise `TooLarge` if there are too many values. Values inside strings do not count."""
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
    """Return the offer that the client prefers. Ties go to the most exact match, then to our order.

    Raises `NotAcceptable` if the client accepts none of them.
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
    """Return the quality and exactness of the most exact range that matches an offer."""
    main = offer.partition("/")[0]
    exactness = {offer: 2, f"{main}/*": 1, "*/*": 0}
    covering = [(exactness[media], quality) for media, quality in ranges if media in exactness]
    exact, quality = max(covering, default=(0, 0.0))
    return quality, exact
