"""Files by REST: transcripts of sessions and files of workspaces, by logical path (G3, G9).

The caller's grants decide. Each way to read a file is a separate operation.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from cfs import wire
from cfs.contract.ids import check_id
from cfs.errors import (
    Conflict,
    Forbidden,
    InvalidIdentifier,
    InvalidParameters,
    InvalidPath,
    NotFound,
    NotGranted,
    PreconditionFailed,
    RangeNotSatisfiable,
    StorageFull,
    TooLarge,
    TooMany,
    Unavailable,
    Unsupported,
)
from cfs_filesystem import EntryMeta
from cfs_filesystem.versions import Change, Entry, EntryType
from cfs_server.domain.ids import SESSIONS, WORKSPACES
from cfs_server.http.bodies import json_body
from cfs_server.http.caller import IfMatch, IfNoneMatch, Me
from cfs_server.http.etags import content_etag, matches, seconds_of, unchanged
from cfs_server.http.file_content import SAFE, content_of, headers_of
from cfs_server.http.openapi import FILE_HEADERS, LIST_HEADERS, NOT_MODIFIED, answer, body, problems
from cfs_server.http.representations import as_json
from cfs_server.http.version_folders import VersionFolderEntry, VersionFolders
from cfs_server.workspaces.file_service import Condition, Files, etag_of, received

router = APIRouter(tags=["files"])

_FILES, _VERSIONS, _PAST = "/v1/files", "/v1/versions", "/v1/past"
_PAST_MODELS = (wire.PastEntry, wire.PastFolder)
_DIGITS = 15
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
PastPath = Annotated[
    str,
    Path(
        description="`sessions/NAME/VERSION`, `workspaces/NAME/PATH/VERSION`, or a folder above. A version is `@` with"
        " a number or a time.",
        json_schema_extra={"pattern": r"^(sessions|workspaces)/[A-Za-z0-9_-]+(/@[0-9]{1,9})?$"},
    ),
]
IfUnmodifiedSince = Annotated[
    str | None, Header(description="Go on only if the file has not changed since this date; see If-Match for versions.")
]


async def _moment(
    at: Annotated[
        str | None,
        Query(
            description="The files of a workspace as they were: the number of a change (`GET /v1/versions/{path}`), or"
            " a time such as `2026-11-27T12:00:00Z`. The rights of the present hold.",
            json_schema_extra={"pattern": r"^[0-9]{1,15}$"},
        ),
    ] = None,
) -> int | datetime | None:
    if at is None:
        return None
    if at.isascii() and at.isdigit() and len(at) <= _DIGITS:
        return int(at)
    try:
        time = datetime.fromisoformat(at)
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    except ValueError:
        raise InvalidParameters(
            f"at={at[:40]!r} is neither the number of a change nor a time such as 2026-11-27T12:00:00Z"
        ) from None


Moment = Annotated[int | datetime | None, Depends(_moment)]


@router.get(
    _FILES,
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
    at: Moment = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """List the files that the caller may list, ordered by path, one page at a time."""
    if at is not None and not prefix:
        prefix = WORKSPACES
    files = [meta for meta in await _files(me, prefix, at).list(prefix or None) if meta["path"] > after]
    page = wire.FilePage(
        files=tuple(_info(meta) for meta in files[:limit]),
        next=files[limit - 1]["path"] if len(files) > limit else None,
    )
    listed = as_json(page)
    headers = {"Cache-Control": "no-cache", "ETag": content_etag(bytes(listed.body))}
    listed.headers.update(headers)
    return _conditional(listed, headers, if_none_match)


@router.get(
    _FILES + "/{path:path}",
    responses={
        200: answer(
            "The file, or what is known of it",
            headers=FILE_HEADERS,
            bytes=None,
            text=None,
            json=(wire.FileInfo, wire.Matches),
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
    at: Moment = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Read a file in one of four ways. Each way is a separate operation that must be granted."""
    files = _files(me, path, at)
    if view == "meta":
        meta = await files.file(path)
        headers = headers_of(meta)
        return _conditional(as_json(_info(meta), headers=headers), headers, if_none_match)
    if view == "text":
        text = await files.read_file(path, index, line)
        headers = headers_of(text.meta)
        lines = Response(text.found.encode(), headers=headers | SAFE, media_type="text/plain")
        return _conditional(lines, headers, if_none_match)
    if view == "matches":
        if pattern is None:
            raise InvalidParameters("view=matches needs a pattern")
        matching = await files.read_re(path, pattern, overlap)
        headers = headers_of(matching.meta)
        result = as_json(wire.Matches(matches=tuple(matching.found)), headers=headers)
        return _conditional(result, headers, if_none_match)
    return content_of(request, path, await files.open(path), range_, if_range, if_none_match)


@router.put(
    _FILES + "/{path:path}",
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
    _FILES + "/{path:path}",
    status_code=204,
    responses={204: answer("Deleted"), **problems(*_ERRORS, Conflict, PreconditionFailed)},
)
async def delete_file(
    path: LogicalPath, me: Me, if_match: IfMatch = None, if_unmodified_since: IfUnmodifiedSince = None
) -> Response:
    """Delete a file. In `/sessions/` this deletes the session and everything below it."""
    await me.files.delete(path, _condition(if_match, None, if_unmodified_since))
    return Response(status_code=204)


@router.get(
    _VERSIONS + "/{path:path}",
    responses={200: answer("A page", headers=LIST_HEADERS, json=wire.FileChanges), **problems(*_ERRORS, Unsupported)},
)
async def list_versions(
    path: LogicalPath,
    me: Me,
    before: Annotated[int | None, Query(ge=0, description="Number of the last change of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """List the changes of a workspace, or of a file or folder in it, the newest first, one page at a time.

    A change has the files for which the caller has the right `file`. `?at=NUMBER` reads one as it was then.
    """
    _require_workspace(path)
    page = await me.files.changes(path, before, limit)
    workspace = "/".join(path.split("/")[:3])
    listed = as_json(
        wire.FileChanges(
            changes=tuple(_change(workspace, change, page.targets) for change in page.changes),
            oldest=page.oldest,
            last=page.last,
            next=page.changes[-1].number if page.more else None,
        )
    )
    headers = {"Cache-Control": "no-cache", "ETag": content_etag(bytes(listed.body))}
    listed.headers.update(headers)
    return _conditional(listed, headers, if_none_match)


@router.delete(
    _VERSIONS + "/{path:path}",
    status_code=204,
    responses={204: answer("Deleted"), **problems(*_ERRORS, Unsupported)},
)
async def forget_versions(path: LogicalPath, me: Me) -> Response:
    """Delete the past of a workspace for ever. Its files stay as they are. Needs `delete` on all of it."""
    _require_workspace(path)
    await me.files.forget(path)
    return Response(status_code=204)


@router.get(
    _PAST + "/{path:path}",
    responses={
        200: answer("The file, or what is known of it", headers=FILE_HEADERS, bytes=None, json=_PAST_MODELS),
        206: answer("A part of the file", headers=FILE_HEADERS, bytes=None),
        304: NOT_MODIFIED,
        **problems(*_ERRORS, NotFound, RangeNotSatisfiable, Unsupported),
    },
)
async def read_past(
    request: Request,
    path: PastPath,
    me: Me,
    view: Annotated[
        Literal["bytes", "meta", "list"],
        Query(description="The bytes of a file; what is known of a file or folder; or what is in a folder."),
    ] = "bytes",
    range_: Annotated[str | None, Header(alias="range", description="For `bytes`: one range of them.")] = None,
    if_range: Annotated[str | None, Header(description="Take the range only of this version.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Read the past as files and folders, like `.versions` of the mount: `workspaces/main/src/a.py/@12`."""
    if path in ("", "sessions"):
        raise NotFound("GET /v1/sessions lists sessions; the past of one is at /v1/past/sessions/NAME")
    folders = VersionFolders(me)
    if view == "meta":
        return as_json(_past_entry(await folders.look(path)))
    if view == "list":
        return as_json(wire.PastFolder(entries=tuple(map(_past_entry, await folders.members(path)))))
    opened = await folders.open(path)
    name = path if opened.meta is None else opened.meta["path"]
    return content_of(request, name, opened, range_, if_range, if_none_match)


def _past_entry(entry: VersionFolderEntry) -> wire.PastEntry:
    return wire.PastEntry(
        name=entry.name,
        type="folder" if entry.folder else "file",
        at=entry.at,
        size=entry.size,
        mode=entry.mode,
        version=entry.version,
    )


@router.post(
    _VERSIONS + "/{path:path}",
    responses={
        200: answer("Merged", json=wire.MergedFiles),
        **problems(*_ERRORS, InvalidIdentifier, NotFound, StorageFull, Unsupported),
    },
    openapi_extra=body(json=wire.MergeRequest),
)
async def merge(
    path: LogicalPath, what: Annotated[wire.MergeRequest, Depends(json_body(wire.MergeRequest))], me: Me
) -> Response:
    """Merge the files of a copy of a workspace back into it, or those of the original into the copy.

    Needs `read_binary` on all of the source, and `read_binary`, `write` and `delete` on all of the target.
    """
    _require_workspace(path)
    target, source = check_id(path.removeprefix(WORKSPACES).removesuffix("/")), check_id(what.source)
    merged = await me.merge_files(target, source, dry_run=what.dry_run)
    entries, before, texts = merged.merge.entries, merged.before, merged.merge.texts
    return as_json(
        wire.MergedFiles(
            target=target,
            source=source,
            number=merged.number,
            files=tuple(
                wire.MergedFile(path=_name(file), change=_what(entry, before.get(file), merged=file in texts))
                for file, entry in entries.items()
            ),
            conflicts=tuple(
                wire.MergeConflict(
                    path=_name(conflict.path), reason=conflict.reason, files=tuple(map(_name, conflict.files))
                )
                for conflict in merged.merge.conflicts
            ),
            left=tuple(map(_name, merged.left)),
            dry_run=what.dry_run,
        )
    )


def _what(
    entry: Entry | None, before: Entry | None, *, merged: bool
) -> Literal["added", "changed", "merged", "removed"]:
    if entry is None:
        return "removed"
    if before is None:
        return "added"
    return "merged" if merged else "changed"


def _name(path: str) -> str:
    return _text(os.fsencode(path))


def _files(me: Me, path: str, at: int | datetime | None) -> Files:
    if at is not None:
        _require_workspace(path)
    return me.files.at(at)


def _require_workspace(path: str) -> None:
    if path.startswith(SESSIONS):
        raise InvalidParameters("these versions are those of files in /workspaces/, not of sessions")


def _change(workspace: str, change: Change, targets: Mapping[str, bytes]) -> wire.FileChange:
    author = change.author
    return wire.FileChange(
        number=change.number,
        at=change.at,
        kind=change.kind.value,
        principal=author.principal or None,
        agent=author.agent or None,
        tool_call=author.call or None,
        files=tuple(_version(f"{workspace}/{path}", entry, targets) for path, entry in change.entries.items()),
    )


def _version(path: str, entry: Entry | None, targets: Mapping[str, bytes]) -> wire.FileVersion:
    rendered = _text(os.fsencode(path))
    if entry is None:
        return wire.FileVersion(path=rendered, type="removed")
    target = targets.get(entry.digest) if entry.type is EntryType.LINK else None
    return wire.FileVersion(
        path=rendered,
        type=entry.type.value,
        mode=entry.mode,
        size=entry.size,
        sha256=entry.digest or None,
        target=None if target is None else _text(target),
    )


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


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
