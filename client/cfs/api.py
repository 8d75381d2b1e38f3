"""Describes every REST call as a value: the request, and a parser for its response. Pure: no I/O (H1).

Functions of this module build a `Call`. A client of `cfs.transports` sends it and returns the result of its `read`.
Errors are those of `cfs.errors`, as the server raised them.
"""

import dataclasses
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from cfs import wire
from cfs.errors import CfsError, ServerError, from_problem
from cfs.ids import check_id

if TYPE_CHECKING:  # most programs do not need these models, which take 0.1 s to import
    from cfs import completions

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

ROOT = "/v1/sessions"
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream"
SESSION = "X-CFS-Session"
"""Header that names the session which records a completion, percent-encoded."""

ON_DISCONNECT = "X-CFS-On-Disconnect"
"""Header that says whether a turn is cancelled (`cancel`) when its client disconnects, or goes on (`continue`)."""

LIFE = "X-CFS-Life"
"""Header that identifies one life of a session; a session that is deleted or lost and created again has another."""

AGENT = "X-CFS-Agent"
"""Header that names the agent which sends a request, percent-encoded, for the records of what it changes."""

TOOL_CALL = "X-CFS-Tool-Call"
"""Header with the id of the tool call that sends a request, percent-encoded."""

KEY = "Idempotency-Key"
"""Header that identifies a write: the server carries out requests with the same key once."""

REPLAYED = "Idempotency-Replayed"
"""Header of the answer to a request that the server had carried out before."""

COMPLETION_SECONDS = 600.0
"""Default timeout of a completion, in seconds."""

_COMPLETIONS = "/v1/chat/completions"
_LONGEST_WAIT = 86_400.0
"""Maximum wait that a server accepts, in seconds; it may wait for a shorter time."""


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response of the server: status, headers (names in lower case) and the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `path` is percent-encoded; `wait_seconds` is the time that the server is asked to wait."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    wait_seconds: float = 0.0

    @property
    def safe(self) -> bool:
        """Whether the method is safe, so that the request can be repeated (RFC 9110, 9.2.1)."""
        return self.method == "GET"

    @property
    def repeatable(self) -> bool:
        """Whether the request can be sent again without a second effect: it only reads, or it has a key."""
        return self.safe or KEY in self.headers

    def keyed(self, key: str | None = None) -> "Request":
        """Return the request with an idempotency key: this one, or a new one unless it has one.

        Requests that change nothing stay as they are: those that are safe, and completions that no session records.
        """
        ephemeral = self.path == _COMPLETIONS and SESSION not in self.headers
        if self.safe or ephemeral or (key is None and KEY in self.headers):
            return self
        return dataclasses.replace(self, headers={**self.headers, KEY: uuid.uuid4().hex if key is None else key})


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the parser of its response."""

    request: Request
    read: Callable[[ApiResponse], T]

    def result(self, answer: ApiResponse) -> T:
        """Parse a response; raises the error that it reports, and `ServerError` if it is not a CFS response."""
        if answer.status >= 400:
            raise error_of(answer)
        try:
            return self.read(answer)
        except (ValidationError, ValueError) as error:
            path, status = self.request.path, answer.status
            raise ServerError(f"{path} answered {status} with a body that is not from CFS: {error}") from None


@dataclass(frozen=True, slots=True)
class Stream:
    """A request whose response is a stream of events.

    `session` is the session of the events, None for all sessions. With `one_turn` they are the events of one turn and
    end with it: of `turn`, or of the turn that the request starts. With `announce` each connection begins with an
    event `connected`, which the client adds.
    """

    request: Request
    session: str | None
    one_turn: bool = False
    announce: bool = False
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkStream:
    """A request whose response is a stream of chunks of a completion; see `completions.CompletionReader`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a session, its version, and the state of the session at that moment.

    `settled` is whether the session became settled within the requested wait; None if no wait was requested.
    """

    text: str
    etag: str
    state: str
    settled: bool | None


class Life:
    """The life of a session that a client has seen. Later calls apply to that life only.

    If the session was deleted or lost, calls raise `Gone`, even if another session has the name now. Without this an
    append would create an empty session, or add to another one.
    """

    def __init__(self) -> None:
        self.nonce = ""

    def forget(self) -> None:
        """Accept the session that has the name now."""
        self.nonce = ""

    def saw(self, token: str | None) -> None:
        """Store the life from an event cursor, an ETag or the header."""
        self.nonce = self.nonce or life_in(token or "")

    def call(self, call: Call[T]) -> Call[T]:
        """Restrict a call to this life, and store the life from its response."""

        def read(answer: ApiResponse) -> T:
            self.saw(answer.headers.get(LIFE.lower()))
            return call.read(answer)

        return Call(self._request(call.request), read)

    def stream(self, stream: Stream) -> Stream:
        """Restrict a stream to this life; the ids of its events are passed to `saw`."""
        return dataclasses.replace(stream, request=self._request(stream.request))

    def _request(self, request: Request) -> Request:
        if not self.nonce:
            return request
        return dataclasses.replace(request, headers={**request.headers, LIFE: self.nonce})


def life_in(token: str) -> str:
    """Return the life of a session in an ETag, an event cursor (`LIFE.EPOCH-NUMBER`) or the header."""
    return token.strip('"').partition("-")[0].partition(".")[0]


_author: ContextVar[Mapping[str, str]] = ContextVar("author", default={})  # noqa: B039 - it is never changed


@contextmanager
def acting_as(agent: str | None = None, call: str | None = None) -> Iterator[None]:
    """Let the requests of this block, and of tasks that it starts, name an agent and a tool call as their author.

    None leaves what the block around it says, and an empty text names none.
    """
    given = {AGENT: agent, TOOL_CALL: call}
    names = {**_author.get(), **{key: quote(name) for key, name in given.items() if name is not None}}
    before = _author.set({key: name for key, name in names.items() if name})
    try:
        yield
    finally:
        _author.reset(before)


def author() -> Mapping[str, str]:
    """Return the headers that name the author of a request."""
    return _author.get()


def authorization(token: str | None) -> dict[str, str]:
    """Return the header with an access token; empty without a token (G9)."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def error_of(answer: ApiResponse) -> CfsError:
    """Return the error of a response (RFC 9457); without a problem document, the status decides.

    Proxies send no problem document; their `Retry-After` is used if it is a number of seconds.
    """
    try:
        problem = json.loads(answer.body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": answer.body[:200].decode(errors="replace").strip() or None}
    after = answer.headers.get("retry-after", "")
    if "retry_after" not in problem and after.isascii() and after.isdigit():
        problem["retry_after"] = int(after)
    return from_problem(answer.status, problem)


# -- sessions ---------------------------------------------------------------------------------------------------------


def list_sessions(
    prefix: str = "", after: str = "", limit: int = 100, *, active: bool = False
) -> Call[wire.SessionPage]:
    """`GET /v1/sessions`: one page, in the order of the ids; with `active` those with turns, at any depth."""
    params = {"prefix": prefix, "after": after, "limit": str(limit), "active": "true" if active else ""}
    return Call(Request("GET", ROOT, {key: value for key, value in params.items() if value}), _model(wire.SessionPage))


def search(words: str, prefix: str = "", limit: int = 20) -> Call[wire.SearchResults]:
    """`GET /v1/search`: the newest messages that contain the words, in sessions that the caller may read."""
    params = {"q": words, "limit": str(limit)} | ({"prefix": prefix} if prefix else {})
    return Call(Request("GET", "/v1/search", params), _model(wire.SearchResults))


def create(
    session: str | None = None,
    settings: wire.SettingsPatch | None = None,
    transcript: str | None = None,
    messages: tuple[wire.Message, ...] = (),
    tokens: int = 0,
    *,
    look_alike: bool = False,
) -> Call[wire.SessionInfo]:
    """`POST /v1/sessions`: make a session, with a history if a transcript or messages are given (S2, S14).

    Raises `LooksAlike` if another session has a name that looks like this one, unless `look_alike` allows it.
    """
    new = wire.NewSession(
        id=None if session is None else check_id(session),
        settings=settings or wire.SettingsPatch(),
        transcript=transcript,
        messages=messages,
        **({"tokens": tokens} if tokens else {}),  # servers of before do not know it
    )
    params = {"look_alike": "allow"} if look_alike else {}
    return Call(_json("POST", ROOT, new, params=params), _model(wire.SessionInfo))


def import_sessions(sessions: Sequence[wire.NewSession], *, check: bool = False) -> Call[wire.ImportResult]:
    """`POST /v1/imports`: create many sessions, parents first, or only check what would become of each."""
    return Call(
        _json("POST", "/v1/imports", wire.Import(sessions=tuple(sessions), check=check)), _model(wire.ImportResult)
    )


def read(session: str, wait: float | None = None) -> Call[wire.SessionDetail]:
    """`GET /v1/sessions/{id}`: the session with its messages, after up to `wait` seconds until it is settled."""
    return Call(_read(session, JSON, wait), _model(wire.SessionDetail))


def transcript(session: str, wait: float | None = None) -> Call[Transcript]:
    """`GET /v1/sessions/{id}` as text, after up to `wait` seconds until it is settled (S6, S7)."""
    return Call(_read(session, "text/plain", wait), _transcript)


def delete(session: str) -> Call[None]:
    """`DELETE /v1/sessions/{id}`, with everything below it (S2)."""
    return Call(Request("DELETE", path_of(session)), _nothing)


def settings(session: str) -> Call[wire.Settings]:
    """`GET /v1/sessions/{id}/settings` (S9)."""
    return Call(Request("GET", path_of(session, "settings")), _model(wire.Settings))


def configure(session: str, patch: wire.SettingsPatch) -> Call[wire.Settings]:
    """`PATCH /v1/sessions/{id}/settings`: what the patch does not name stays (S9)."""
    return Call(_json("PATCH", path_of(session, "settings"), patch), _model(wire.Settings))


def replace(session: str, text: str, etag: str, delay: float = 0.0) -> Call[wire.SessionInfo]:
    """`PUT /v1/sessions/{id}/transcript`: an edited history in place of the version that `etag` names (S14).

    A turn that this starts begins after `delay` seconds.
    """
    headers = {"Content-Type": TEXT, "If-Match": etag}
    request = Request("PUT", path_of(session, "transcript"), _delay(delay), headers, text.encode())
    return Call(request, _model(wire.SessionInfo))


def cancel(session: str, *, queued: bool = False, cascade: bool = False) -> Call[wire.Cancelled]:
    """`POST /v1/sessions/{id}/cancel`: the running turn, those that wait, those below it (S12)."""
    what = wire.CancelRequest(queued=queued, cascade=cascade)
    return Call(_json("POST", path_of(session, "cancel"), what), _model(wire.Cancelled))


def fork(session: str, copy: str | None = None, messages: int | None = None) -> Call[wire.Fork]:
    """`POST /v1/sessions/{id}/fork`: copy the first `messages`, or all, under another id (S14)."""
    how = wire.ForkRequest(id=None if copy is None else check_id(copy), messages=messages)
    return Call(_json("POST", path_of(session, "fork"), how), _model(wire.Fork))


def rename(session: str, to: str) -> Call[wire.SessionInfo]:
    """`POST /v1/sessions/{id}/rename` (S14)."""
    return Call(
        _json("POST", path_of(session, "rename"), wire.RenameRequest(id=check_id(to))), _model(wire.SessionInfo)
    )


def wait(session: str, timeout: float) -> Call[wire.SessionInfo]:
    """`GET /v1/sessions/{id}/wait`: until it and everything below it is idle; `Timeout` after some seconds (S13)."""
    params = {"timeout": _seconds(timeout)}
    return Call(Request("GET", path_of(session, "wait"), params, wait_seconds=timeout), _model(wire.SessionInfo))


def sub_sessions(session: str) -> Call[wire.SessionTree]:
    """`GET /v1/sessions/{id}/sub_sessions`: the tree below it, any depth."""
    return Call(Request("GET", path_of(session, "sub_sessions")), _model(wire.SessionTree))


# -- messages and events ----------------------------------------------------------------------------------------------


def append(session: str, content: bytes, delay: float = 0.0) -> Call[wire.Accepted]:
    """`POST /v1/sessions/{id}/messages` with plain text: one message, as if it were written to a file (S3, S4).

    Its turn begins after `delay` seconds, or as soon as a client waits for the reply.
    """
    headers = {"Content-Type": TEXT, "Accept": JSON}
    request = Request("POST", path_of(session, "messages"), _delay(delay), headers, content)
    return Call(request, _model(wire.Accepted))


def post(session: str, message: wire.NewMessage) -> Call[wire.Accepted]:
    """`POST /v1/sessions/{id}/messages`: a structured message, accepted at once (S4)."""
    return Call(_json("POST", path_of(session, "messages"), message), _model(wire.Accepted))


def say(session: str, message: wire.NewMessage, wait: float) -> Call[wire.Reply]:
    """`POST /v1/sessions/{id}/messages?wait=&transcript=true`: the finished reply, and the transcript up to it.

    `Timeout`, which names the `turn`, when it is not there after `wait` seconds; then the turn goes on.
    """
    params = {"wait": _seconds(wait), "transcript": "true"}
    return Call(
        _json("POST", path_of(session, "messages"), message, params=params, wait_seconds=wait), _model(wire.Reply)
    )


def converse(session: str, message: wire.NewMessage) -> Stream:
    """`POST /v1/sessions/{id}/messages` as a stream: the message's own turn, event by event."""
    request = _json("POST", path_of(session, "messages"), message, accept=EVENTS)
    return Stream(request, session, one_turn=True)


def turn_events(session: str, turn: str) -> Stream:
    """`GET /v1/sessions/{id}/events`: those of one turn, from its beginning to its end."""
    return Stream(events(session, after="0").request, session, one_turn=True, turn=turn)


def events(session: str | None = None, after: str | None = None) -> Stream:
    """`GET /v1/sessions/{id}/events`, or of all sessions: what happens from now on, or after an event (S11)."""
    path = "/v1/events" if session is None else path_of(session, "events")
    params = {} if after is None else {"after": after}
    return Stream(Request("GET", path, params, {"Accept": EVENTS}), session)


# -- agents -----------------------------------------------------------------------------------------------------------


def claim(session: str, lease: float = wire.LEASE_SECONDS, wait: float = 0.0) -> Call[wire.Claim | None]:
    """`POST /v1/sessions/{id}/claim`: the next message that waits; None after `wait` seconds without (S10)."""
    request = _json("POST", path_of(session, "claim"), wire.ClaimRequest(lease=lease, wait=wait), wait_seconds=wait)
    return Call(request, lambda answer: None if answer.status == 204 else wire.Claim.model_validate_json(answer.body))


def update(session: str, turn: str, news: wire.AgentUpdate) -> Call[wire.Claim]:
    """`POST /v1/sessions/{id}/turns/{turn}/update`: text or messages of a claimed turn; renews the lease (S10)."""
    return Call(_json("POST", path_of(session, f"turns/{quote(turn, safe='')}/update"), news), _model(wire.Claim))


def finish(session: str, turn: str, end: wire.AgentFinish) -> Call[wire.Reply]:
    """`POST /v1/sessions/{id}/turns/{turn}/finish`: the end of a claimed turn (S10)."""
    return Call(_json("POST", path_of(session, f"turns/{quote(turn, safe='')}/finish"), end), _model(wire.Reply))


# -- questions of agents ----------------------------------------------------------------------------------------------


def ask(
    session: str, claim: str, text: str, *, directory: str | None = None, background: bool = False
) -> Call[wire.Question]:
    """`POST /v1/sessions/{id}/questions`: ask a person whether a command may run, as the agent of a claim (A5)."""
    new = wire.NewQuestion(claim=claim, text=text, directory=directory, background=background)
    return Call(_json("POST", path_of(session, "questions"), new), _model(wire.Question))


def questions(session: str, *, every: bool = False) -> Call[tuple[wire.Question, ...]]:
    """`GET /v1/sessions/{id}/questions`: the open ones, or also the newest closed ones of the running turn (A5)."""
    request = Request("GET", path_of(session, "questions"), {"all": "true"} if every else {})
    return Call(request, lambda answer: wire.QuestionList.model_validate_json(answer.body).questions)


def question(session: str, question: str, wait: float = 0.0) -> Call[wire.Question]:
    """`GET /v1/sessions/{id}/questions/{question}`: after up to `wait` seconds until it is not open any more (A5)."""
    params = {"wait": _seconds(wait)} if wait else {}
    return Call(Request("GET", _question(session, question), params, wait_seconds=wait), _model(wire.Question))


def answer(session: str, question: str, answer: str | None, claim: str | None = None) -> Call[wire.Question]:
    """`POST /v1/sessions/{id}/questions/{question}`: answer it; `Conflict` if another answer came first (A5).

    The agent that asked sends its claim: with what its terminal answered, or with None to withdraw the question.
    """
    said = wire.QuestionAnswer(answer=answer, claim=claim)
    return Call(_json("POST", _question(session, question), said), _model(wire.Question))


def _question(session: str, question: str) -> str:
    return path_of(session, f"questions/{quote(question, safe='')}")


# -- shares -----------------------------------------------------------------------------------------------------------


def share(session: str, access: Literal["read", "write"], expires: float | None = None) -> Call[wire.NewlyShared]:
    """`POST /v1/shares`: make a link to a session and all below it, which ends after some seconds (G9)."""
    new = wire.NewShare(session=check_id(session), access=access, expires=expires)
    return Call(_json("POST", "/v1/shares", new), _model(wire.NewlyShared))


def shares(session: str) -> Call[wire.ShareList]:
    """`GET /v1/shares`: the caller's own shares of a session (G9)."""
    return Call(Request("GET", "/v1/shares", {"session": check_id(session)}), _model(wire.ShareList))


def revoke_share(share: str) -> Call[None]:
    """`DELETE /v1/shares/{id}`: its token is refused at once, and its connections end (G9)."""
    return Call(Request("DELETE", f"/v1/shares/{quote(share, safe='')}"), _nothing)


# -- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file, the size of the whole file, and its version; without a version `etag` is empty."""

    content: bytes
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a write has stored, the version that it made, and whether the file is new."""

    info: wire.FileInfo
    etag: str
    new: bool


def files(prefix: str = "", after: str = "", limit: int = 1000) -> Call[wire.FilePage]:
    """`GET /v1/files`: one page in the order of the paths; `prefix` is an entry, or a directory that ends with `/`."""
    params = {"prefix": prefix, "after": after, "limit": str(limit)}
    request = Request("GET", "/v1/files", {key: value for key, value in params.items() if value})
    return Call(request, _model(wire.FilePage))


def file(path: str) -> Call[wire.FileInfo]:
    """`GET /v1/files/{path}?view=meta`: what is known of the file at a logical path."""
    return Call(Request("GET", _file(path), {"view": "meta"}), _model(wire.FileInfo))


def read_file(path: str, first: int = 0, size: int | None = None) -> Call[FilePart]:
    """`GET /v1/files/{path}`: the bytes of a file, or `size` of them from byte `first`."""
    end = "" if size is None else str(first + size - 1)
    headers = {} if not first and size is None else {"Range": f"bytes={first}-{end}"}
    return Call(Request("GET", _file(path), headers=headers), _part)


def write_file(path: str, content: bytes, *, etag: str | None = None, new: bool = False) -> Call[WrittenFile]:
    """`PUT /v1/files/{path}`: with an `etag` only over that version, and with `new` only where there is no file.

    Raises `PreconditionFailed` otherwise.
    """
    headers = {"Content-Type": "application/octet-stream"}
    headers |= {"If-None-Match": "*"} if new else {"If-Match": etag} if etag is not None else {}
    return Call(Request("PUT", _file(path), headers=headers, body=content), _written)


def delete_file(path: str, *, etag: str | None = None) -> Call[None]:
    """`DELETE /v1/files/{path}`, with an `etag` only that version."""
    return Call(Request("DELETE", _file(path), headers={} if etag is None else {"If-Match": etag}), _nothing)


def _file(path: str) -> str:
    return f"/v1/files{quote(path if path.startswith('/') else f'/{path}')}"


def _part(answer: ApiResponse) -> FilePart:
    size = answer.headers.get("content-range", "").rpartition("/")[2] or len(answer.body)
    return FilePart(answer.body, int(size), answer.headers.get("etag", ""))


def _written(answer: ApiResponse) -> WrittenFile:
    info = wire.FileInfo.model_validate_json(answer.body)
    return WrittenFile(info, answer.headers.get("etag", ""), answer.status == 201)


# -- the server -------------------------------------------------------------------------------------------------------


def backup() -> Request:
    """`GET /v1/backup`: a copy of the file of all sessions, for `Client.download`."""
    return Request("GET", "/v1/backup")


# -- completions ------------------------------------------------------------------------------------------------------


def complete(
    request: "completions.ChatRequest", session: str | None = None, wait_seconds: float = COMPLETION_SECONDS
) -> "Call[completions.ChatCompletion]":
    """`POST /v1/chat/completions`: the whole completion, recorded in a session if one is named (H4)."""
    from cfs.completions import ChatCompletion

    return Call(_completion(request, session, wait_seconds, {"stream": False}), _model(ChatCompletion))


def complete_in_chunks(request: "completions.ChatRequest", session: str | None = None) -> ChunkStream:
    """`POST /v1/chat/completions`: the completion as it is made; its last chunk says what it cost (H4)."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return ChunkStream(_completion(request, session, 0.0, options))


def models() -> "Call[completions.ModelList]":
    """`GET /v1/models`."""
    from cfs.completions import ModelList

    return Call(Request("GET", "/v1/models"), _model(ModelList))


def connections() -> Call[wire.ConnectionList]:
    """`GET /v1/connections`: the models of the server's file, which it reads again if it has changed."""
    return Call(Request("GET", "/v1/connections"), _model(wire.ConnectionList))


def count_tokens(request: "completions.TokensRequest") -> "Call[completions.TokenCounts]":
    """`POST /v1/tokens`: the tokens of texts, and of a conversation's prompt."""
    from cfs.completions import TokenCounts

    return Call(_json("POST", "/v1/tokens", request), _model(TokenCounts))


def _completion(
    request: "completions.ChatRequest", session: str | None, wait_seconds: float, how: dict[str, Any]
) -> Request:
    headers = {"Content-Type": JSON, "Accept": EVENTS if how["stream"] else JSON}
    if session is not None:
        headers[SESSION] = quote(check_id(session))
    body = json.dumps(request.model_dump(mode="json", exclude_none=True) | how, ensure_ascii=False).encode()
    return Request("POST", _COMPLETIONS, headers=headers, body=body, wait_seconds=wait_seconds)


# -- the server ------------------------------------------------------------------------------------------------------


def store() -> Call[str]:
    """`GET /healthz`: the id of the server's store, which is another one where sessions have been lost."""
    return Call(Request("GET", "/healthz"), lambda answer: str(json.loads(answer.body).get("store", "")))


def files_store() -> Call[str]:
    """`GET /healthz`: the id of the store of the workspaces, which servers may share, or else as `store`."""

    def id_in(body: bytes) -> str:
        found = json.loads(body)
        return str(found.get("workspaces") or found.get("store", ""))

    return Call(Request("GET", "/healthz"), lambda answer: id_in(answer.body))


def ready() -> Call[None]:
    """`GET /readyz`: raises `Unavailable` where a turn would not start now."""
    return Call(Request("GET", "/readyz"), _nothing)


# -- parts ------------------------------------------------------------------------------------------------------------


def path_of(session: str, route: str = "") -> str:
    """Write the path of a session or of one of its routes: percent-encoded, but for the slashes of sub-sessions."""
    path = f"{ROOT}/{quote(check_id(session))}"
    return f"{path}/{route}" if route else path


def _json(
    method: str,
    path: str,
    body: BaseModel,
    *,
    params: Mapping[str, str] | None = None,
    accept: str = JSON,
    wait_seconds: float = 0.0,
) -> Request:
    headers = {"Content-Type": JSON, "Accept": accept}
    return Request(method, path, params or {}, headers, body.model_dump_json(exclude_unset=True).encode(), wait_seconds)


def _read(session: str, accept: str, wait: float | None) -> Request:
    params = {} if wait is None else {"wait": _seconds(wait)}
    return Request("GET", path_of(session), params, {"Accept": accept}, wait_seconds=wait or 0.0)


def _delay(seconds: float) -> dict[str, str]:
    return {"delay": _seconds(seconds)} if seconds else {}


def _seconds(value: float) -> str:
    return f"{min(value, _LONGEST_WAIT):.3f}"


def _model(model: type[Model]) -> Callable[[ApiResponse], Model]:
    return lambda answer: model.model_validate_json(answer.body)


def _transcript(answer: ApiResponse) -> Transcript:
    settled = answer.headers.get("x-cfs-settled")
    return Transcript(
        answer.body.decode(),
        answer.headers.get("etag", ""),
        answer.headers.get("x-cfs-state", "idle"),
        None if settled is None else settled == "true",
    )


def _nothing(_: ApiResponse) -> None:
    return None
