"""Sessions: list, create, read, change, copy and delete them."""

from collections.abc import Sequence
from dataclasses import dataclass

from cfs.api._calls import (
    JSON,
    ROOT,
    TEXT,
    ApiResponse,
    Call,
    Request,
    json_request,
    parse_model,
    parse_nothing,
    path_of,
    seconds_text,
)
from cfs.api._messages import delay_params
from cfs.contract import wire
from cfs.contract.ids import check_id


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a session, its version, and the state of the session at that moment.

    `settled` is whether the session became settled within the requested wait; None if no wait was requested.
    """

    text: str
    etag: str
    state: str
    settled: bool | None


def list_sessions(
    prefix: str = "", after: str = "", limit: int = 100, *, active: bool = False
) -> Call[wire.SessionPage]:
    """`GET /v1/sessions`: one page, in the order of the ids; with `active` those with turns, at any depth."""
    params = {"prefix": prefix, "after": after, "limit": str(limit), "active": "true" if active else ""}
    return Call(
        Request("GET", ROOT, {key: value for key, value in params.items() if value}), parse_model(wire.SessionPage)
    )


def search(
    words: str,
    prefix: str = "",
    limit: int = 20,
    *,
    within: str = "",
    role: wire.Role | None = None,
    since: float | None = None,
) -> Call[wire.SearchResults]:
    """`GET /v1/search`: the best matches in messages, titles and files that the caller may read.

    `words` must all occur; they may be "phrases" and beginnings (`word*`). Only the session `within` and those below
    it, only messages of this role, and only what is not older than `since`, in seconds since 1970.
    """
    optional = {"prefix": prefix, "in": within, "role": role, "since": None if since is None else repr(since)}
    params = {"q": words, "limit": str(limit)} | {name: value for name, value in optional.items() if value}
    return Call(Request("GET", "/v1/search", params), parse_model(wire.SearchResults))


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
    return create_from(new, look_alike=look_alike)


def create_from(new: wire.NewSession, *, look_alike: bool = False) -> Call[wire.SessionInfo]:
    """`POST /v1/sessions` with all that the body of the request can have."""
    params = {"look_alike": "allow"} if look_alike else {}
    return Call(json_request("POST", ROOT, new, params=params), parse_model(wire.SessionInfo))


def import_sessions(sessions: Sequence[wire.NamedSession], *, check: bool = False) -> Call[wire.ImportResult]:
    """`POST /v1/imports`: create many sessions, parents first, or only check what would become of each."""
    return Call(
        json_request("POST", "/v1/imports", wire.Import(sessions=tuple(sessions), check=check)),
        parse_model(wire.ImportResult),
    )


def read(session: str, wait: float | None = None) -> Call[wire.SessionDetail]:
    """`GET /v1/sessions/{id}`: the session with its messages, after up to `wait` seconds until it is settled."""
    return Call(_read(session, JSON, wait), parse_model(wire.SessionDetail))


def transcript(session: str, wait: float | None = None) -> Call[Transcript]:
    """`GET /v1/sessions/{id}` as text, after up to `wait` seconds until it is settled (S6, S7)."""
    return Call(_read(session, "text/plain", wait), _transcript)


def delete(session: str) -> Call[None]:
    """`DELETE /v1/sessions/{id}`, with everything below it (S2)."""
    return Call(Request("DELETE", path_of(session)), parse_nothing)


def settings(session: str) -> Call[wire.Settings]:
    """`GET /v1/sessions/{id}/settings` (S9)."""
    return Call(Request("GET", path_of(session, "settings")), parse_model(wire.Settings))


def configure(session: str, patch: wire.SettingsPatch) -> Call[wire.Settings]:
    """`PATCH /v1/sessions/{id}/settings`: what the patch does not name stays (S9)."""
    return Call(json_request("PATCH", path_of(session, "settings"), patch), parse_model(wire.Settings))


def replace(session: str, text: str, etag: str, delay: float = 0.0) -> Call[wire.SessionInfo]:
    """`PUT /v1/sessions/{id}/transcript`: an edited history in place of the version that `etag` names (S14).

    A turn that this starts begins after `delay` seconds.
    """
    headers = {"Content-Type": TEXT, "If-Match": etag}
    request = Request("PUT", path_of(session, "transcript"), delay_params(delay), headers, text.encode())
    return Call(request, parse_model(wire.SessionInfo))


def cancel(session: str, *, queued: bool = False, cascade: bool = False) -> Call[wire.Cancelled]:
    """`POST /v1/sessions/{id}/cancel`: the running turn, those that wait, those below it (S12)."""
    what = wire.CancelRequest(queued=queued, cascade=cascade)
    return Call(json_request("POST", path_of(session, "cancel"), what), parse_model(wire.Cancelled))


def fork(session: str, copy: str | None = None, messages: int | None = None, *, files: bool = True) -> Call[wire.Fork]:
    """`POST /v1/sessions/{id}/fork`: copy the first `messages`, or all, and the files, under another id (S14)."""
    how = wire.ForkRequest(id=None if copy is None else check_id(copy), messages=messages, files=files)
    return Call(json_request("POST", path_of(session, "fork"), how), parse_model(wire.Fork))


def versions(session: str, before: int | None = None, limit: int = 100) -> Call[wire.SessionVersions]:
    """`GET /v1/sessions/{id}/versions`: the newest versions, or those before one, oldest first."""
    params = {"limit": str(limit)} | ({} if before is None else {"before": str(before)})
    return Call(Request("GET", path_of(session, "versions"), params), parse_model(wire.SessionVersions))


def read_at(session: str, at: int | str) -> Call[wire.SessionDetail]:
    """`GET /v1/sessions/{id}?at=...`: the session with the messages of a version, or of a time (ISO 8601)."""
    return Call(Request("GET", path_of(session), {"at": str(at)}, {"Accept": JSON}), parse_model(wire.SessionDetail))


def rewind(session: str, how: wire.RewindRequest) -> Call[wire.Rewound]:
    """`POST /v1/sessions/{id}/rewind`: go back to a version, or to a time (ISO 8601); its turns are cancelled."""
    return Call(json_request("POST", path_of(session, "rewind"), how), parse_model(wire.Rewound))


def redo(session: str, how: wire.RedoRequest) -> Call[wire.Rewound]:
    """`POST /v1/sessions/{id}/redo`: undo the last rewind, in all sessions that it changed, and of files."""
    return Call(json_request("POST", path_of(session, "redo"), how), parse_model(wire.Rewound))


def rename(session: str, to: str) -> Call[wire.SessionInfo]:
    """`POST /v1/sessions/{id}/rename` (S14)."""
    return Call(
        json_request("POST", path_of(session, "rename"), wire.RenameRequest(id=check_id(to))),
        parse_model(wire.SessionInfo),
    )


def wait(session: str, timeout: float) -> Call[wire.SessionInfo]:
    """`GET /v1/sessions/{id}/wait`: until it and everything below it is idle; `Timeout` after some seconds (S13)."""
    params = {"timeout": seconds_text(timeout)}
    return Call(Request("GET", path_of(session, "wait"), params, wait_seconds=timeout), parse_model(wire.SessionInfo))


def sub_sessions(session: str) -> Call[wire.SessionTree]:
    """`GET /v1/sessions/{id}/sub_sessions`: the tree below it, any depth."""
    return Call(Request("GET", path_of(session, "sub_sessions")), parse_model(wire.SessionTree))


def _read(session: str, accept: str, wait: float | None) -> Request:
    params = {} if wait is None else {"wait": seconds_text(wait)}
    return Request("GET", path_of(session), params, {"Accept": accept}, wait_seconds=wait or 0.0)


def _transcript(answer: ApiResponse) -> Transcript:
    settled = answer.headers.get("x-cfs-settled")
    return Transcript(
        answer.body.decode(),
        answer.headers.get("etag", ""),
        answer.headers.get("x-cfs-state", "idle"),
        None if settled is None else settled == "true",
    )
