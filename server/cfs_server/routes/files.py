"""Files by REST: transcripts of sessions and files of workspaces, by logical path (G3, G9).

The caller's grants decide. Each way to read a file is a separate operation.
"""

from io import BytesIO
from mimetypes import MimeTypes
from os import SEEK_END
from typing import Annotated, BinaryIO, Literal
from urllib.parse import quote

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.types import Receive, Scope, Send

from cfs import wire
from cfs.errors import (
    Conflict,
    Forbidden,
    InvalidParameters,
    InvalidPath,
    NotGranted,
    PreconditionFailed,
    RangeNotSatisfiable,
    StorageFull,
    TooLarge,
    TooMany,
    Unavailable,
)
from cfs_filesystem import EntryMeta
from cfs_server.errors import problem_response
from cfs_server.file_service import Condition, Read, etag_of, received
from cfs_server.openapi import FILE_HEADERS, LIST_HEADERS, NOT_MODIFIED, answer, body, problems
from cfs_server.routes.http import (
    IfMatch,
    IfNoneMatch,
    Me,
    as_json,
    content_etag,
    http_date,
    matches,
    part_of,
    seconds_of,
    unchanged,
)
from cfs_server.sessions.ids import SESSIONS

# The content of a file as a response: whole or one range, sent in slices, never all in memory (RFC 9110, 14).

SAFE = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
"""Headers against active content: a file shown by a browser must not run scripts with the server's origin."""

_TYPES = MimeTypes()
_SLICE = 1 << 20


def content_of(
    request: Request,
    path: str,
    read: Read[BinaryIO],
    asked: str | None,
    if_range: str | None,
    if_none_match: str | None,
) -> Response:
    """Return a response with an open file or the requested range. The response closes the file."""
    headers = headers_of(read.meta)
    try:
        if unchanged(if_none_match, headers.get("ETag", "")):
            read.found.close()
            return Response(status_code=304, headers=headers)
        size = read.found.seek(0, SEEK_END)
        ignored = request.scope["cfs.head"] or (if_range is not None and if_range.strip() != etag_of(read.meta))
        part = part_of(None if ignored else asked, size)  # only GET has ranges (RFC 9110, 14.2)
    except RangeNotSatisfiable as error:
        read.found.close()
        return problem_response(error, **{"Content-Range": f"bytes */{size}"})
    headers |= SAFE | {"Accept-Ranges": "bytes"}
    if part is None:
        return FileContent(read.found, range(size), 200, headers, media_type_of(path))
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return FileContent(read.found, part, 206, headers, media_type_of(path))


class FileContent(Response):
    """A part of an open file. It is read in threads and stops at the end of the file."""

    def __init__(self, content: BinaryIO, part: range, status: int, headers: dict[str, str], media: str) -> None:
        self._content = content
        self._part = part
        super().__init__(None, status, headers | {"Content-Length": str(len(part))}, media)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the part. Send only the headers for HEAD."""
        with self._content as content:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            left = 0 if scope["cfs.head"] else len(self._part)
            content.seek(self._part.start)
            while left > 0:
                size = min(left, _SLICE)
                light = isinstance(content, BytesIO)
                data = content.read(size) if light else await to_thread.run_sync(content.read, size)
                if not data:
                    break  # the file was truncated; the connection will be closed
                left -= len(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def media_type_of(path: str) -> str:
    """Guess the media type from the name. A compressed file does not have the type of its content."""
    if path.startswith(SESSIONS):
        return "text/plain"
    media, compression = _TYPES.guess_type(path)
    return "application/octet-stream" if media is None or compression else media


def headers_of(meta: EntryMeta | None) -> dict[str, str]:
    """Return the ETag and date of an entry, if they are known."""
    headers = {"Cache-Control": "no-cache"}
    if meta is not None:
        headers["Last-Modified"] = http_date(meta["updated_at"].timestamp())
        if (etag := etag_of(meta)) is not None:
            headers["ETag"] = etag
    return headers


router = APIRouter(prefix="/v1/files", tags=["files"])

_ERRORS = (InvalidPath, InvalidParameters, Forbidden, NotGranted)


async def _path(
    path: Annotated[
        str,
        Path(
            description="Logical path without the '/' that it begins with, percent-encoded.",  # G1
            json_schema_extra={"pattern": r"^(sessions|workspaces)/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$"},
        ),
    ],
) -> str:
    return "/" + path


LogicalPath = Annotated[str, Depends(_path)]
IfUnmodifiedSince = Annotated[
    str | None, Header(description="Go on only if the file has not changed since this date; see If-Match for versions.")
]


@router.get(
    "",
    responses={
        200: answer("A page", headers=LIST_HEADERS, json=wire.FilePage),
        304: NOT_MODIFIED,
        **problems(*_ERRORS),
    },
)
async def list_files(
    me: Me,
    prefix: Annotated[
        str,
        Query(
            description="Logical path of an entry or, with a '/' at its end, of what is below; all unless set.",
            json_schema_extra={"pattern": r"^(/sessions/|/workspaces/)?$"},
        ),
    ] = "",
    after: Annotated[str, Query(description="Last path of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """List the files that the caller may list, ordered by path, one page at a time."""
    found = [meta for meta in await me.files.list(prefix or None) if meta["path"] > after]
    page = wire.FilePage(
        files=tuple(_info(meta) for meta in found[:limit]),
        next=found[limit - 1]["path"] if len(found) > limit else None,
    )
    listed = as_json(page)
    headers = {"Cache-Control": "no-cache", "ETag": content_etag(bytes(listed.body))}
    listed.headers.update(headers)
    return _conditional(listed, headers, if_none_match)


@router.get(
    "/{path:path}",
    responses={
        200: answer(
            "The file, or what is known of it", headers=FILE_HEADERS, bytes=None, text=None, json=wire.FileInfo
        ),
        206: answer("A part of the file", headers=FILE_HEADERS, bytes=None),
        304: NOT_MODIFIED,
        **problems(*_ERRORS, RangeNotSatisfiable),
    },
)
async def read_file(
    request: Request,
    path: LogicalPath,
    me: Me,
    view: Annotated[
        Literal["bytes", "text", "matches", "meta"],
        Query(description="The bytes; lines of the text; what matches a pattern; or what is known of the file."),
    ] = "bytes",
    index: Annotated[int | None, Query(description="For `text`: the first line, from 0.")] = None,
    line: Annotated[int | None, Query(description="For `text`: how many lines.")] = None,
    pattern: Annotated[str | None, Query(description="For `matches`: a regular expression.")] = None,
    overlap: Annotated[int | None, Query(description="For `matches`: characters shared with the match before.")] = None,
    range_: Annotated[str | None, Header(alias="range", description="For `bytes`: one range of them.")] = None,
    if_range: Annotated[str | None, Header(description="Take the range only of this version.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Read a file in one of four ways. Each way is a separate operation that must be granted."""
    if view == "meta":
        meta = await me.files.file(path)
        headers = headers_of(meta)
        return _conditional(as_json(_info(meta), headers=headers), headers, if_none_match)
    if view == "text":
        text = await me.files.read_file(path, index, line)
        headers = headers_of(text.meta)
        lines = Response(text.found.encode(), headers=headers | SAFE, media_type="text/plain")
        return _conditional(lines, headers, if_none_match)
    if view == "matches":
        if pattern is None:
            raise InvalidParameters("view=matches needs a pattern")
        matching = await me.files.read_re(path, pattern, overlap)
        headers = headers_of(matching.meta)
        found = as_json(wire.Matches(matches=tuple(matching.found)), headers=headers)
        return _conditional(found, headers, if_none_match)
    return content_of(request, path, await me.files.open(path), range_, if_range, if_none_match)


@router.put(
    "/{path:path}",
    responses={
        200: answer("Stored", headers=FILE_HEADERS, json=wire.FileInfo),
        201: answer("Stored, and new", headers=FILE_HEADERS, location=True, json=wire.FileInfo),
        **problems(*_ERRORS, Conflict, PreconditionFailed, StorageFull, TooLarge, TooMany, Unavailable),
    },
    openapi_extra=body(required=False, bytes=None),
)
async def write_file(
    request: Request,
    path: LogicalPath,
    me: Me,
    if_match: IfMatch = None,
    if_none_match: Annotated[
        str | None,
        Header(description="Go on only if none of these ETags names the present version; `*`: if there is no file."),
    ] = None,
    if_unmodified_since: IfUnmodifiedSince = None,
) -> Response:
    """Write a file. In `/sessions/` this sends one message to a session and runs its turn."""  # S3
    condition = _condition(if_match, if_none_match, if_unmodified_since)
    overwrite = if_none_match is None or if_none_match.strip() != "*"
    content, _ = await received(request.receive)
    with content:
        written = await me.files.write(path, content, overwrite=overwrite, condition=condition)
    headers = headers_of(written.meta)
    if written.new:
        headers["Location"] = f"/v1/files{quote(path)}"
    return as_json(_info(written.meta), 201 if written.new else 200, headers)


@router.delete(
    "/{path:path}",
    status_code=204,
    responses={204: answer("Deleted"), **problems(*_ERRORS, Conflict, PreconditionFailed)},
)
async def delete_file(
    path: LogicalPath, me: Me, if_match: IfMatch = None, if_unmodified_since: IfUnmodifiedSince = None
) -> Response:
    """Delete a file. In `/sessions/` this deletes the session and everything below it."""
    await me.files.delete(path, _condition(if_match, None, if_unmodified_since))
    return Response(status_code=204)


def _conditional(response: Response, headers: dict[str, str], if_none_match: str | None) -> Response:
    """Return the response with these headers, or 304 if the client already has this version."""
    if "ETag" in headers and unchanged(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return response


def _condition(if_match: str | None, if_none_match: str | None, unmodified_since: str | None) -> Condition | None:
    """Return the condition that counts: that on the date only if there is none on the version (RFC 9110, 13.2.2)."""
    if if_match is not None:
        return Condition(lambda meta: (etag := etag_of(meta)) is not None and matches(if_match, etag), "If-Match")
    if if_none_match is not None:
        return Condition(
            lambda meta: (etag := etag_of(meta)) is None or not unchanged(if_none_match, etag), "If-None-Match"
        )
    if (since := seconds_of(unmodified_since)) is not None:
        return Condition(
            lambda meta: meta is None or int(meta["updated_at"].timestamp()) <= since, "If-Unmodified-Since"
        )
    return None


def _info(meta: EntryMeta) -> wire.FileInfo:
    return wire.FileInfo.model_validate({**meta, "updated_at": meta["updated_at"].timestamp()})
