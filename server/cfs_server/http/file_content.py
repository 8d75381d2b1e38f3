"""The content of a file as a response: whole or one range, sent in slices, never all in memory (RFC 9110, 14)."""

from io import BytesIO
from mimetypes import MimeTypes
from os import SEEK_END
from typing import BinaryIO

from anyio import to_thread
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from cfs.errors import RangeNotSatisfiable
from cfs_filesystem import EntryMeta
from cfs_server.domain.ids import SESSIONS
from cfs_server.http.errors import problem_response
from cfs_server.http.etags import http_date, unchanged
from cfs_server.http.ranges import part_of
from cfs_server.workspaces.file_service import Read, etag_of

SAFE = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
"""Headers against active content: a file shown by a browser must not run scripts with the server's origin."""

_TYPES = MimeTypes()
_SLICE = 1 << 20


def content_of(
    request: Request,
    path: str,
    read: Read[BinaryIO],
    range_header: str | None,
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
        part = part_of(None if ignored else range_header, size)  # only GET has ranges (RFC 9110, 14.2)
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
