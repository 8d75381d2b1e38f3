"""Calls as values: a request, and a parser for its response."""

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from cfs.contract.errors import CfsError, ServerError, from_problem
from cfs.contract.ids import check_id

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

COMPLETIONS = "/v1/chat/completions"

LONGEST_WAIT = 86_400.0
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
        ephemeral = self.path == COMPLETIONS and SESSION not in self.headers
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


def path_of(session: str, route: str = "") -> str:
    """Write the path of a session or of one of its routes: percent-encoded, but for the slashes of sub-sessions."""
    path = f"{ROOT}/{quote(check_id(session))}"
    return f"{path}/{route}" if route else path


def json_request(
    method: str,
    path: str,
    body: BaseModel,
    *,
    params: Mapping[str, str] | None = None,
    accept: str = JSON,
    wait_seconds: float = 0.0,
) -> Request:
    """Return a request with a model as its JSON body; members that are not set are left out."""
    headers = {"Content-Type": JSON, "Accept": accept}
    return Request(method, path, params or {}, headers, body.model_dump_json(exclude_unset=True).encode(), wait_seconds)


def seconds_text(value: float) -> str:
    """Write a time to wait for the query, at most what servers accept."""
    return f"{min(value, LONGEST_WAIT):.3f}"


def parse_model(model: type[Model]) -> Callable[[ApiResponse], Model]:
    """Return the parser of a response whose body is a model."""
    return lambda answer: model.model_validate_json(answer.body)


def parse_nothing(_: ApiResponse) -> None:
    """Parse a response without a body."""
    return
