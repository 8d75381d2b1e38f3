"""The error classes of CFS, raised by the server, the SDK, file systems, WebDAV and the mount.

    CfsError
    ├── InvalidRequest          malformed: the same request can never succeed
    │   ├── InvalidIdentifier   not a legal session id (S1)
    │   ├── InvalidPath         not a legal path of a file (G1)
    │   ├── InvalidSettings     a setting that cannot be set here (S9)
    │   ├── InvalidTranscript   text that does not read as turns (S6)
    │   ├── InvalidParameters   a parameter or a member of the body is not what the API takes (H5)
    │   └── KeyReused           the idempotency key belongs to another request
    ├── UnsupportedMedia        body is not UTF-8, or of a type we do not read
    ├── Unauthorized            no valid credentials
    ├── Forbidden               valid credentials, but not for this
    ├── NotFound                no such session, turn or route
    │   ├── NotGranted          or none that the caller may know of (G9)
    │   ├── ModelNotFound       no model of this name answers here
    │   └── Gone                it was there and is not there any more (S2)
    │       ├── SessionDeleted  a user, a program or a time limit has deleted it
    │       ├── SessionRenamed  it has another name now (S14)
    │       └── SessionLost     the server has never had it, or was restored without it
    ├── MethodNotAllowed
    ├── NotAcceptable
    ├── Conflict                the state does not allow it now
    │   ├── AlreadyExists
    │   ├── LooksAlike          another session's name looks like this one (S1)
    │   ├── PreconditionFailed  If-Match names another version (H3)
    │   └── InProgress          the first request with this idempotency key is still running
    ├── PreconditionRequired    If-Match is missing where it is needed
    ├── RangeNotSatisfiable     the range lies outside of the file
    ├── TooLarge                one message, body or id is over its limit (H7)
    ├── Busy                    a non-blocking read met a running turn (S7)
    ├── TooMany                 a queue or rate is full; try again later (H7)
    ├── StorageFull             sessions or bytes are over the server's limit (H7)
    ├── Unavailable             the server or its engine cannot answer now
    │   ├── EngineError         a turn failed in the engine (S5)
    │   │   ├── ContextTooLong
    │   │   ├── SchemaRefused   no grammar can be made of the JSON schema of a reply (C7)
    │   │   ├── TokenRefused    the model has no such token
    │   │   ├── UpstreamRefused the server behind this one refuses the request
    │   │   ├── UpstreamBusy    the server behind this one takes no more requests now
    │   │   └── WorkerCrashed
    │   └── Unreachable         no server answers, or the connection to it was lost (C9)
    ├── Timeout                 the answer did not come in time
    ├── Unsupported             this endpoint cannot do that; another one can (C1)
    ├── InvalidReply            the model's replies do not fit the form that was asked for (C7)
    ├── TooManyRounds           the model goes on calling tools beyond the limit (C8)
    ├── Unverified              an agent's answer claims changes of files that did not happen (B7)
    └── ServerError             a defect of ours

`TABLE` maps each class to its HTTP status, which is also the WebDAV status, and to its errno. A class without a row,
such as those of `cfs_filesystem`, uses the row of its nearest base class. `from_problem` and `from_errno` do the
reverse: a problem document (RFC 9457) has the class as its `type`, so a client raises the same error as the server.
"""

import errno
from typing import Any, ClassVar, NamedTuple


class CfsError(Exception):
    """Anything CFS reports: `detail` says what was wrong and what to do about it."""

    title: ClassVar[str] = "Error"
    passes: ClassVar[bool] = False
    """Whether the same request may succeed later."""

    def __init__(self, detail: str, *, retry_after: float | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after
        self.extra = extra

    @property
    def status(self) -> int:
        """HTTP and WebDAV status code."""
        return self._row.status

    @property
    def errno(self) -> int:
        """Number that a file operation fails with."""
        return self._row.errno

    @property
    def slug(self) -> str:
        """Name of the class in a problem document's `type`."""
        return self._row.slug

    @property
    def should_retry(self) -> bool:
        """Whether to send the same request again: it may succeed, and the server has not repeated it already.

        All that repeat requests ask this: the server says it with the header `x-should-retry`, agents look at it.
        """
        return self.passes and self.extra.get("should_retry") is not False

    @property
    def _row(self) -> "ErrorRow":
        return next(TABLE[kind] for kind in type(self).__mro__ if kind in TABLE)


class InvalidRequest(CfsError):
    """The request is malformed; sending it again cannot help."""

    title = "Invalid request"


class InvalidIdentifier(InvalidRequest):
    """The name is no legal session id (S1)."""

    title = "Invalid session id"


class InvalidPath(InvalidRequest):
    """The string can never name a file here, or a link stands in its way (G1)."""

    title = "Invalid path"


class InvalidSettings(InvalidRequest):
    """A setting that cannot be set here; unknown keys and values out of range are `InvalidParameters` (S9)."""

    title = "Invalid settings"


class InvalidTranscript(InvalidRequest):
    """The text does not read as a sequence of turns (S6)."""

    title = "Invalid transcript"


class InvalidParameters(InvalidRequest):
    """A parameter or a member of the body is not what the API takes; `errors` says which (H5)."""

    title = "Invalid parameters"


class KeyReused(InvalidRequest):
    """The idempotency key was sent before, with another request; a new request needs a new key."""

    title = "Idempotency key reused"


class UnsupportedMedia(CfsError):
    """The body is not valid UTF-8 or of a media type that is not read here."""

    title = "Unsupported media type"


class Unauthorized(CfsError):
    """Valid credentials are missing."""

    title = "Unauthorized"


class Forbidden(CfsError):
    """The credentials are valid but do not cover this."""

    title = "Forbidden"


class NotFound(CfsError):
    """There is no such thing, or none that the caller may know of."""

    title = "Not found"


class NotGranted(NotFound):
    """No grant of the caller covers the name; whether something of that name exists is not revealed (G9)."""

    title = "Not found"


class ModelNotFound(NotFound):
    """No model of this name answers here; the message lists those that do."""

    title = "No such model"


class Gone(NotFound):
    """It existed when the caller saw it, and does not exist any more (S2)."""

    title = "Gone"


class SessionDeleted(Gone):
    """The session that the caller has seen was deleted; the name may be in use again (S2)."""

    title = "Session deleted"


class SessionRenamed(Gone):
    """The session that the caller has seen has another name now, which `renamed_to` says (S14)."""

    title = "Session renamed"

    @property
    def renamed_to(self) -> str:
        """The present name."""
        return str(self.extra.get("renamed_to", ""))


class SessionLost(Gone):
    """The server has never had the session that the caller has seen, or has lost it with its store."""

    title = "Session lost"


def departed(session_id: str, renamed_to: str | None = None) -> SessionDeleted | SessionRenamed:
    """Return the error for a session that has left its name: it was deleted, or has another name now."""
    if renamed_to is None:
        return SessionDeleted(f"session {session_id!r} has been deleted")
    return SessionRenamed(f"session {session_id!r} is called {renamed_to!r} now", renamed_to=renamed_to)


class MethodNotAllowed(CfsError):
    """The resource exists but does not know this method."""

    title = "Method not allowed"


class NotAcceptable(CfsError):
    """None of the representations that the caller accepts exists."""

    title = "Not acceptable"


class Conflict(CfsError):
    """The present state does not allow the operation."""

    title = "Conflict"


class AlreadyExists(Conflict):
    """The name is taken."""

    title = "Already exists"


class LooksAlike(Conflict):
    """Another session has a name that looks like this one; `existing` is its name (S1)."""

    title = "Looks alike"


class PreconditionFailed(Conflict):
    """`If-Match` names another version than the current one (RFC 9110, 13.1.1)."""

    title = "Precondition failed"


class InProgress(Conflict):
    """The first request with this idempotency key is still running; try again later."""

    title = "In progress"
    passes = True


class PreconditionRequired(CfsError):
    """The operation needs `If-Match` (RFC 6585, 3)."""

    title = "Precondition required"


class TooLarge(CfsError):
    """A body, a message or a name is over its limit (H7)."""

    title = "Too large"


class RangeNotSatisfiable(CfsError):
    """The range that was asked for lies outside of the content (RFC 9110, 14)."""

    title = "Range not satisfiable"


class Busy(CfsError):
    """A non-blocking read met a session that is generating (S7)."""

    title = "Busy"
    passes = True


class TooMany(CfsError):
    """A queue, a rate or a number of open streams is at its limit; `retry_after` is in seconds (H7)."""

    title = "Too many requests"
    passes = True


class StorageFull(CfsError):
    """The number of sessions or their bytes are at the server's limit (H7)."""

    title = "Insufficient storage"


class Unavailable(CfsError):
    """The server, or the engine behind it, cannot answer now."""

    title = "Unavailable"
    passes = True


class EngineError(Unavailable):
    """A turn failed in the engine; the message is the reason that the session's history shows (S5)."""

    title = "Engine error"


class ContextTooLong(EngineError):
    """The prompt leaves no room for a reply in the model's context.

    `fits` is how many of the newest exchanges a prompt would hold, and `leaving` about how many tokens the older ones
    have; None and 0 where that is not known.
    """

    title = "Context too long"
    passes = False

    def __init__(
        self,
        detail: str,
        *,
        retry_after: float | None = None,
        fits: int | None = None,
        leaving: int = 0,
        **extra: Any,
    ) -> None:
        super().__init__(detail, retry_after=retry_after, **extra)
        self.fits = fits
        self.leaving = leaving


class SchemaRefused(EngineError):
    """The JSON schema of a reply fits nothing, or cannot be made a grammar (C7)."""

    title = "Schema refused"
    passes = False


class TokenRefused(EngineError):
    """A setting names a token that the model's vocabulary does not have."""

    title = "Token refused"
    passes = False


UPSTREAM_STATUSES = frozenset({400, 401, 402, 403, 404, 410, 413, 422, 429, 451})
"""Statuses of an upstream that keep their meaning for clients; others concern the way between the two servers."""


class UpstreamRefused(EngineError):
    """The server that answers for this one refuses the request; the status is the one that it gave.

    It refuses this server: a 401 is about the key that the operator has set, not about the caller's token.
    """

    title = "Refused by the upstream"
    passes = False

    @property
    def status(self) -> int:
        """HTTP status code of the upstream, if it has a meaning for clients."""
        status = self.extra.get("upstream_status")
        return status if status in UPSTREAM_STATUSES else super().status


class UpstreamBusy(EngineError):
    """The server that answers for this one takes no more requests now; `retry_after` is in seconds."""

    title = "Upstream busy"


class WorkerCrashed(EngineError):
    """The worker process ended during the turn (E1)."""

    title = "Worker crashed"


class Unreachable(Unavailable):
    """No server answers, or the connection was lost and could not be restored (C9)."""

    title = "Unreachable"


class Timeout(CfsError):
    """The answer did not come within the time that was asked for."""

    title = "Timed out"
    passes = True


class Unsupported(CfsError):
    """This endpoint cannot do that; the message says what to use instead (C1)."""

    title = "Unsupported"


class InvalidReply(CfsError):
    """No reply had the form that was asked for; `last_reply` is the last one (C7)."""

    title = "Invalid reply"

    @property
    def last_reply(self) -> str:
        """Text of the last reply."""
        return str(self.extra.get("last_reply", ""))


class TooManyRounds(CfsError):
    """The model was still calling tools when the limit of rounds was reached (C8)."""

    title = "Too many rounds"


class Unverified(CfsError):
    """An agent's answer claims changes of files that did not happen (B7)."""

    title = "Unverified"


class ServerError(CfsError):
    """A defect of the server."""

    title = "Internal server error"
    passes = True


class ErrorRow(NamedTuple):
    """HTTP status and errno of one class of errors; WebDAV uses the HTTP status."""

    slug: str
    status: int
    errno: int


TABLE: dict[type[CfsError], ErrorRow] = {
    InvalidRequest: ErrorRow("invalid-request", 400, errno.EINVAL),
    InvalidIdentifier: ErrorRow("invalid-identifier", 422, errno.EINVAL),
    InvalidPath: ErrorRow("invalid-path", 400, errno.EINVAL),
    InvalidSettings: ErrorRow("invalid-settings", 422, errno.EINVAL),
    InvalidTranscript: ErrorRow("invalid-transcript", 422, errno.EINVAL),
    InvalidParameters: ErrorRow("invalid-parameters", 422, errno.EINVAL),
    KeyReused: ErrorRow("key-reused", 422, errno.EINVAL),
    UnsupportedMedia: ErrorRow("unsupported-media", 415, errno.EILSEQ),
    Unauthorized: ErrorRow("unauthorized", 401, errno.EACCES),
    Forbidden: ErrorRow("forbidden", 403, errno.EACCES),
    NotFound: ErrorRow("not-found", 404, errno.ENOENT),
    NotGranted: ErrorRow("not-granted", 404, errno.ENOENT),
    ModelNotFound: ErrorRow("model-not-found", 404, errno.ENOENT),
    Gone: ErrorRow("gone", 410, errno.ESTALE),
    SessionDeleted: ErrorRow("session-deleted", 410, errno.ESTALE),
    SessionRenamed: ErrorRow("session-renamed", 410, errno.ESTALE),
    SessionLost: ErrorRow("session-lost", 410, errno.ESTALE),
    MethodNotAllowed: ErrorRow("method-not-allowed", 405, errno.EOPNOTSUPP),
    NotAcceptable: ErrorRow("not-acceptable", 406, errno.EOPNOTSUPP),
    Conflict: ErrorRow("conflict", 409, errno.EPERM),
    AlreadyExists: ErrorRow("already-exists", 409, errno.EEXIST),
    LooksAlike: ErrorRow("looks-alike", 409, getattr(errno, "ENOTUNIQ", errno.EEXIST)),
    PreconditionFailed: ErrorRow("precondition-failed", 412, errno.ESTALE),
    InProgress: ErrorRow("in-progress", 409, errno.EBUSY),
    PreconditionRequired: ErrorRow("precondition-required", 428, errno.EPERM),
    TooLarge: ErrorRow("too-large", 413, errno.EFBIG),
    RangeNotSatisfiable: ErrorRow("range-not-satisfiable", 416, errno.EINVAL),
    Busy: ErrorRow("busy", 409, errno.EAGAIN),
    TooMany: ErrorRow("too-many", 429, errno.EAGAIN),
    StorageFull: ErrorRow("storage-full", 507, errno.ENOSPC),
    Unavailable: ErrorRow("unavailable", 503, errno.EAGAIN),
    EngineError: ErrorRow("engine-error", 502, errno.EIO),
    ContextTooLong: ErrorRow("context-too-long", 422, errno.EFBIG),
    SchemaRefused: ErrorRow("schema-refused", 422, errno.EINVAL),
    TokenRefused: ErrorRow("token-refused", 422, errno.EINVAL),
    UpstreamRefused: ErrorRow("upstream-refused", 502, errno.EIO),
    UpstreamBusy: ErrorRow("upstream-busy", 429, errno.EAGAIN),
    WorkerCrashed: ErrorRow("worker-crashed", 502, errno.EIO),
    Unreachable: ErrorRow("unreachable", 503, errno.ENOTCONN),
    Timeout: ErrorRow("timeout", 504, errno.ETIMEDOUT),
    Unsupported: ErrorRow("unsupported", 501, errno.EOPNOTSUPP),
    InvalidReply: ErrorRow("invalid-reply", 502, errno.EBADMSG),
    TooManyRounds: ErrorRow("too-many-rounds", 508, errno.ELOOP),
    Unverified: ErrorRow("unverified", 502, errno.EBADMSG),
    ServerError: ErrorRow("server-error", 500, errno.EIO),
}

_BY_SLUG = {row.slug: kind for kind, row in TABLE.items()}
_BY_STATUS = {row.status: kind for kind, row in reversed(TABLE.items())} | {502: Unavailable}
"""What a status means where no `type` is known: a 502 then is a gateway's, whose server does not answer."""

_NEVER_FROM_A_FILE = (InvalidReply, TooManyRounds, Unverified)
_BY_ERRNO = {row.errno: kind for kind, row in reversed(TABLE.items()) if kind not in _NEVER_FROM_A_FILE} | {
    # Where classes share a number, the general one:
    errno.EACCES: Forbidden,
    errno.EIO: ServerError,
    errno.EOPNOTSUPP: Unsupported,
    # Numbers that only a kernel or another file system reports:
    errno.EDQUOT: StorageFull,
    errno.EISDIR: InvalidIdentifier,
    errno.ENAMETOOLONG: InvalidIdentifier,
    errno.ENOSYS: Unsupported,
    errno.ENOTDIR: InvalidIdentifier,
    errno.EROFS: Forbidden,
}

PROBLEM_PREFIX = "urn:cfs:error:"


def to_problem(error: CfsError) -> dict[str, Any]:
    """Describe an error as a problem document (RFC 9457)."""
    problem: dict[str, Any] = {
        "type": PROBLEM_PREFIX + error.slug,
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
    }
    if error.retry_after is not None:
        problem["retry_after"] = error.retry_after
    return problem | error.extra


def from_problem(status: int, problem: dict[str, Any]) -> CfsError:
    """Rebuild the error that a problem document describes; without a known `type` the status decides."""
    slug = str(problem.get("type", "")).removeprefix(PROBLEM_PREFIX)
    kind = _BY_SLUG.get(slug) or _BY_STATUS.get(status) or (ServerError if status >= 500 else InvalidRequest)
    retry_after = problem.get("retry_after")
    standard = {"type", "title", "status", "detail", "retry_after", "error"}  # `error` says it again, for other clients
    extra = {key: value for key, value in problem.items() if key not in standard}
    detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
    return kind(detail, retry_after=retry_after if isinstance(retry_after, int | float) else None, **extra)


def from_errno(number: int | None) -> type[CfsError]:
    """Return the class that a file operation means by this number; `ServerError` for numbers without a row."""
    return _BY_ERRNO.get(number or 0, ServerError)


for _kind in {CfsError, *TABLE}:
    _kind.__module__ = "cfs.errors"  # the public path, which users see in tracebacks and logs
