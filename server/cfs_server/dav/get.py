"""GET and HEAD of the mounts of sessions, in ASGI: whoever waits takes no thread from the others (W4, S7).

A GET waits a while until the session is settled; after that it is answered by what there is, and `X-CFS-State` says
what the session was doing. `Prefer: wait=N` shortens that, `wait=0` to nothing. A HEAD never waits.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from email.utils import parsedate_to_datetime
from functools import partial

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from cfs.errors import NotFound, PreconditionFailed, RangeNotSatisfiable
from cfs_server.dav.put import is_davfs2
from cfs_server.dav.sessions import MEDIA_TYPE, ScratchPath, SessionPath, SessionTree
from cfs_server.errors import problem_response
from cfs_server.routes.http import LongText, attend, http_date, matches, part_of, unchanged
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.history import rendered

# What a client prefers (RFC 7240): how long an answer may take. Pure: no I/O.

_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)


def wait_of(headers: Iterable[str]) -> int | None:
    """Read the seconds of `Prefer: wait=N`, the first that there is; None without one that can be understood."""
    for preference in ",".join(headers).split(","):
        if (found := _WAIT.fullmatch(preference)) is not None:
            return int(found[1])
    return None


WAIT_SECONDS = 20.0
"""davfs2 gives up after 30."""

_DAVFS_SECONDS = 1.1
"""The kernel believes for a second the size that davfs2 told it before it asked for the bytes, and cuts them to it."""

_LONG_BYTES = 256 << 10
_SAFE = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_FOREIGN = {"Content-Security-Policy": "sandbox; default-src 'none'"}


async def read(request: Request, tree: SessionTree, path: str, *, seconds: float = WAIT_SECONDS) -> Response:
    """Answer by what is at a path: a transcript, a scratch file, or the names in a collection, one a line.

    Raises `NotFound`, `Forbidden`, `InvalidIdentifier`, `PreconditionFailed`, and `ClientLeft`.
    """
    match tree.resolve(path):
        case SessionPath(session_id):
            return await read_session(request, tree.gate, session_id, seconds=seconds)
        case ScratchPath():
            file = tree.scratch(path)
            shown = _Shown(f'"{file.etag}"', file.changed_at, "application/octet-stream", _FOREIGN)
            return _answer(request, shown, len(file.data), lambda: file.data)
    if tree.look(path) is None:
        raise NotFound(f"there is nothing at {path!r}")
    return await to_thread.run_sync(_listing, tree, path)


async def read_session(
    request: Request, gate: AuthorizedSessions, session_id: str, *, seconds: float = WAIT_SECONDS
) -> Response:
    """Answer by the transcript, once the session is settled or `seconds` are over.

    Raises `NotFound`, `Gone` where it is deleted meanwhile, `Forbidden`, `InvalidIdentifier`, `PreconditionFailed`, and
    `ClientLeft`.
    """
    session = gate.get(session_id, "read_binary")
    headers: dict[str, str] = {}
    if not _is_head(request):
        preferred = wait_of(request.headers.getlist("prefer"))
        if preferred is not None and preferred <= seconds:
            seconds, headers = preferred, {"Preference-Applied": f"wait={preferred}"}
        if seconds > 0 and not gate.is_settled(session):
            least = _DAVFS_SECONDS if is_davfs2(request.headers.get("user-agent", "")) else 0.0
            settled = partial(gate.wait_settled, session, seconds, "read_binary")
            await attend(request, _lasting(min(least, seconds), settled))
    history = session.history
    if not _is_head(request):
        await rendered(history, session.account.owner)
    # from here on nothing is awaited: it is one state of the session that is shown
    shown = _Shown(session.etag, history.changed_at, MEDIA_TYPE, headers | {"X-CFS-State": session.state})
    return _answer(request, shown, history.size, lambda: history.text.encode())


async def _lasting(seconds: float, wait: Callable[[], Awaitable[object]]) -> None:
    """Wait, for so many seconds at least."""
    end = asyncio.get_running_loop().time() + seconds
    await wait()
    await asyncio.sleep(end - asyncio.get_running_loop().time())


class _Shown:
    """A version of some bytes, and how it is presented."""

    def __init__(self, etag: str, changed_at: float, media_type: str, headers: dict[str, str]) -> None:
        self.etag = etag
        self.changed_at = changed_at
        self.media_type = media_type
        self.headers = {"ETag": etag, "Last-Modified": http_date(changed_at)} | _SAFE | headers


def _answer(request: Request, shown: _Shown, size: int, read_all: Callable[[], bytes]) -> Response:
    """Answer by bytes, by the part of them that was asked for, or by the word that the client has them."""
    if _is_known(request.headers, shown):
        return Response(status_code=304, headers=shown.headers)
    headers = shown.headers | {"Accept-Ranges": "bytes"}
    if _is_head(request):  # the text of a long session is not made to be thrown away
        return Response(b"", 200, headers | {"Content-Length": str(size)}, shown.media_type)
    asked = request.headers.get("range")
    if request.headers.get("if-range", shown.etag).strip() != shown.etag:
        asked = None  # it is a part of another version
    try:
        part = part_of(asked, size)
    except RangeNotSatisfiable as error:
        return problem_response(error, **{"Content-Range": f"bytes */{size}"})
    data = read_all()
    if part is None:
        return (LongText if size > _LONG_BYTES else Response)(data, 200, headers, shown.media_type)
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return LongText(memoryview(data)[part.start : part.stop], 206, headers, shown.media_type)


def _is_known(given: Headers, shown: _Shown) -> bool:
    """Tell whether the client has this version already (RFC 9110, 13.2.2); raises `PreconditionFailed`."""
    if (if_match := given.get("if-match")) is not None and not matches(if_match, shown.etag):
        raise PreconditionFailed(f"If-Match: {if_match} does not hold: the version is {shown.etag}")
    if (if_none_match := given.get("if-none-match")) is not None:
        return unchanged(if_none_match, shown.etag)
    return _not_since(given.get("if-modified-since"), shown.changed_at)


def _not_since(date: str | None, changed_at: float) -> bool:
    if date is None:
        return False
    try:
        since = parsedate_to_datetime(date)
        return since.tzinfo is not None and int(changed_at) <= since.timestamp()
    except (ValueError, TypeError, OverflowError):
        return False  # what is no date is as if it were not there


def _listing(tree: SessionTree, path: str) -> Response:
    names = sorted(
        f"{entry.path.rpartition('/')[2]}{'/' if entry.collection else ''}\n" for entry in tree.members(path)
    )
    return Response("".join(names), 200, _SAFE, MEDIA_TYPE)


def _is_head(request: Request) -> bool:
    """The guard hands a HEAD on as a GET, and says so."""
    return request.method == "HEAD" or bool(request.scope.get("cfs.head"))
