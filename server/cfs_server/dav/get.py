"""GET and HEAD of the session mounts as ASGI, so that a waiting request uses no thread (W4, S7).

A GET waits for a limited time until the session is settled, then returns the current transcript. `X-CFS-State` is the
state of the session. `Prefer: wait=N` shortens the wait; `wait=0` disables it. A HEAD never waits.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from cfs.errors import NotFound, PreconditionFailed, RangeNotSatisfiable
from cfs_server.dav.paths import ScratchPath, SessionPath
from cfs_server.dav.put import is_davfs2
from cfs_server.dav.sessions import MEDIA_TYPE, RootSessionTree
from cfs_server.domain.history import rendered
from cfs_server.http.disconnects import attend
from cfs_server.http.errors import problem_response
from cfs_server.http.etags import http_date, matches, seconds_of, unchanged
from cfs_server.http.ranges import part_of
from cfs_server.http.representations import LongText
from cfs_server.sessions.authorized import AuthorizedSessions

# The client's preference for the wait (RFC 7240). Pure functions, no I/O.

_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)


def wait_of(headers: Iterable[str]) -> int | None:
    """Return the seconds of the first `Prefer: wait=N`; None if there is no valid one."""
    for preference in ",".join(headers).split(","):
        if (match := _WAIT.fullmatch(preference)) is not None:
            return int(match[1])
    return None


WAIT_SECONDS = 20.0
"""davfs2 times out after 30 seconds."""

_DAVFS_SECONDS = 1.1
"""For one second the kernel uses the size from davfs2's earlier request, and truncates the content to it."""

_LONG_BYTES = 256 << 10
_SAFE = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_FOREIGN = {"Content-Security-Policy": "sandbox; default-src 'none'"}


async def read(request: Request, tree: RootSessionTree, path: str, *, seconds: float = WAIT_SECONDS) -> Response:
    """Return the content at a path: a transcript, a scratch file, or the names in a collection, one per line.

    Raises `NotFound`, `Forbidden`, `InvalidIdentifier`, `PreconditionFailed` and `ClientLeft`.
    """
    match tree.resolve(path):
        case SessionPath(session_id):
            response = await read_session(request, tree.gate, session_id, seconds=seconds)
            if not _is_head(request):
                tree.note_read(session_id)
            elif (etag := tree.etag_after_move(session_id)) is not None:
                response.headers["ETag"] = f'"{etag}"'
            return response
        case ScratchPath():
            file = tree.scratch(path)
            representation = _Representation(f'"{file.etag}"', file.changed_at, "application/octet-stream", _FOREIGN)
            return _answer(request, representation, len(file.data), lambda: file.data)
    if tree.look(path) is None:
        raise NotFound(f"there is nothing at {path!r}")
    return await to_thread.run_sync(_listing, tree, path)


async def read_session(
    request: Request, gate: AuthorizedSessions, session_id: str, *, seconds: float = WAIT_SECONDS
) -> Response:
    """Return the transcript when the session is settled or `seconds` have passed.

    Raises `NotFound`, `Gone` if the session is deleted during the wait, `Forbidden`, `InvalidIdentifier`,
    `PreconditionFailed` and `ClientLeft`.
    """
    session = gate.get(session_id, "read_binary")
    headers: dict[str, str] = {}
    if not _is_head(request):
        preferred = wait_of(request.headers.getlist("prefer"))
        if preferred is not None and preferred <= seconds:
            seconds, headers = preferred, {"Preference-Applied": f"wait={preferred}"}
        if seconds > 0 and not gate.is_settled(session):
            min_seconds = _DAVFS_SECONDS if is_davfs2(request.headers.get("user-agent", "")) else 0.0
            settled = partial(gate.wait_settled, session, seconds, "read_binary")
            await attend(request, _lasting(min(min_seconds, seconds), settled))
    history = session.history

    def shown() -> _Representation:
        return _Representation(session.etag, history.changed_at, MEDIA_TYPE, headers | {"X-CFS-State": session.state})

    if _is_head(request) or _is_known(request.headers, shown()):  # the messages need not be in memory
        return _answer(request, shown(), history.size, bytes)
    async with gate.loaded(session):
        await rendered(history, session.account.owner)
        # no await from here on, so that the response shows one state of the session
        return _answer(request, shown(), history.size, lambda: history.text.encode())


async def _lasting(seconds: float, wait: Callable[[], Awaitable[object]]) -> None:
    """Wait for at least this many seconds."""
    end = asyncio.get_running_loop().time() + seconds
    await wait()
    await asyncio.sleep(end - asyncio.get_running_loop().time())


class _Representation:
    """A version of a content, and its response headers."""

    def __init__(self, etag: str, changed_at: float, media_type: str, headers: dict[str, str]) -> None:
        self.etag = etag
        self.changed_at = changed_at
        self.media_type = media_type
        self.headers = {"ETag": etag, "Last-Modified": http_date(changed_at)} | _SAFE | headers


def _answer(request: Request, representation: _Representation, size: int, read_all: Callable[[], bytes]) -> Response:
    """Return the content, the requested range of it, or 304 if the client already has it."""
    if _is_known(request.headers, representation):
        return Response(status_code=304, headers=representation.headers)
    headers = representation.headers | {"Accept-Ranges": "bytes"}
    if _is_head(request):  # do not render a long transcript for HEAD
        return Response(b"", 200, headers | {"Content-Length": str(size)}, representation.media_type)
    requested = request.headers.get("range")
    if request.headers.get("if-range", representation.etag).strip() != representation.etag:
        requested = None  # it is a range of another version
    try:
        part = part_of(requested, size)
    except RangeNotSatisfiable as error:
        return problem_response(error, **{"Content-Range": f"bytes */{size}"})
    data = read_all()
    if part is None:
        return (LongText if size > _LONG_BYTES else Response)(data, 200, headers, representation.media_type)
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return LongText(memoryview(data)[part.start : part.stop], 206, headers, representation.media_type)


def _is_known(headers: Headers, representation: _Representation) -> bool:
    """Return whether the client already has this version (RFC 9110, 13.2.2). Raises `PreconditionFailed`."""
    if (if_match := headers.get("if-match")) is not None and not matches(if_match, representation.etag):
        raise PreconditionFailed(f"If-Match: {if_match} does not hold: the version is {representation.etag}")
    if (if_none_match := headers.get("if-none-match")) is not None:
        return unchanged(if_none_match, representation.etag)
    return _not_since(headers.get("if-modified-since"), representation.changed_at)


def _not_since(date: str | None, changed_at: float) -> bool:
    since = seconds_of(date)
    return since is not None and int(changed_at) <= since


def _listing(tree: RootSessionTree, path: str) -> Response:
    names = sorted(
        f"{entry.path.rpartition('/')[2]}{'/' if entry.collection else ''}\n" for entry in tree.members(path)
    )
    return Response("".join(names), 200, _SAFE, MEDIA_TYPE)


def _is_head(request: Request) -> bool:
    """Return whether the request is a HEAD, which the middleware has changed to GET."""
    return request.method == "HEAD" or bool(request.scope.get("cfs.head"))
