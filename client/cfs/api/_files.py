"""Files of workspaces, and their versions."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from urllib.parse import quote

from cfs.api._calls import ApiResponse, Call, Request, json_request, parse_model, parse_nothing
from cfs.contract import wire
from cfs.contract.ids import check_id


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


Moment: TypeAlias = int | datetime | str | None
"""The number of a change of a workspace, or a time (an aware datetime, or ISO 8601); None means now."""


def files(prefix: str = "", after: str = "", limit: int = 1000, at: Moment = None) -> Call[wire.FilePage]:
    """`GET /v1/files`: one page in the order of the paths; `prefix` is an entry, or a directory that ends with `/`.

    `at` reads the files of workspaces as they were.
    """
    params = {"prefix": prefix, "after": after, "limit": str(limit), **_at(at)}
    request = Request("GET", "/v1/files", {key: value for key, value in params.items() if value})
    return Call(request, parse_model(wire.FilePage))


def file(path: str, at: Moment = None) -> Call[wire.FileInfo]:
    """`GET /v1/files/{path}?view=meta`: what is known of the file at a logical path, now or `at` a version."""
    return Call(Request("GET", _file(path), {"view": "meta", **_at(at)}), parse_model(wire.FileInfo))


def read_file(path: str, first: int = 0, size: int | None = None, at: Moment = None) -> Call[FilePart]:
    """`GET /v1/files/{path}`: the bytes of a file, or `size` of them from byte `first`, now or `at` a version."""
    end = "" if size is None else str(first + size - 1)
    headers = {} if not first and size is None else {"Range": f"bytes={first}-{end}"}
    return Call(Request("GET", _file(path), _at(at), headers=headers), _part)


def write_file(path: str, content: bytes, *, etag: str | None = None, new: bool = False) -> Call[WrittenFile]:
    """`PUT /v1/files/{path}`: with an `etag` only over that version, and with `new` only where there is no file.

    Raises `PreconditionFailed` otherwise.
    """
    headers = {"Content-Type": "application/octet-stream"}
    headers |= {"If-None-Match": "*"} if new else {"If-Match": etag} if etag is not None else {}
    return Call(Request("PUT", _file(path), headers=headers, body=content), _written)


def delete_file(path: str, *, etag: str | None = None) -> Call[None]:
    """`DELETE /v1/files/{path}`, with an `etag` only that version."""
    return Call(Request("DELETE", _file(path), headers={} if etag is None else {"If-Match": etag}), parse_nothing)


def file_changes(path: str, before: int | None = None, limit: int = 100) -> Call[wire.FileChanges]:
    """`GET /v1/versions/{path}`: the changes of a workspace, or of a file or folder in it, the newest first.

    `path` is a logical one, such as `/workspaces/main`. Their numbers are the `at` of `files` and `read_file`.
    """
    params = {"limit": str(limit)} | ({} if before is None else {"before": str(before)})
    return Call(Request("GET", _versions(path), params), parse_model(wire.FileChanges))


def forget_versions(path: str) -> Call[None]:
    """`DELETE /v1/versions/{path}`: delete the past of a workspace for ever. Its files stay as they are."""
    return Call(Request("DELETE", _versions(path)), parse_nothing)


def past_entry(path: str) -> Call[wire.PastEntry]:
    """`GET /v1/past/{path}?view=meta`: what is known of a file or folder of the past.

    Such a path is `sessions/main/@12`, where `%2F` stands for the `/` of a sub-session, or `workspaces/main/a.py/@12`.
    """
    return Call(Request("GET", f"/v1/past/{quote(path)}", {"view": "meta"}), parse_model(wire.PastEntry))


def past_entries(path: str) -> Call[wire.PastFolder]:
    """`GET /v1/past/{path}?view=list`: what is in a folder of the past."""
    return Call(Request("GET", f"/v1/past/{quote(path)}", {"view": "list"}), parse_model(wire.PastFolder))


def read_past(path: str, first: int, size: int) -> Call[FilePart]:
    """`GET /v1/past/{path}`: `size` bytes of a file of the past from byte `first`."""
    headers = {"Range": f"bytes={first}-{first + size - 1}"}
    return Call(Request("GET", f"/v1/past/{quote(path)}", headers=headers), _part)


def merge_files(source: str, target: str, *, dry_run: bool = False) -> Call[wire.MergedFiles]:
    """`POST /v1/versions/workspaces/{target}`: merge what a workspace has changed into its original, or its copy."""
    what = wire.MergeRequest(source=check_id(source), dry_run=dry_run)
    return Call(json_request("POST", _versions(f"/workspaces/{check_id(target)}"), what), parse_model(wire.MergedFiles))


def _at(moment: Moment) -> dict[str, str]:
    if moment is None:
        return {}
    return {"at": moment.isoformat() if isinstance(moment, datetime) else str(moment)}


def _versions(path: str) -> str:
    return f"/v1/versions{quote(path if path.startswith('/') else f'/{path}')}"


def _file(path: str) -> str:
    return f"/v1/files{quote(path if path.startswith('/') else f'/{path}')}"


def _part(answer: ApiResponse) -> FilePart:
    size = answer.headers.get("content-range", "").rpartition("/")[2] or len(answer.body)
    return FilePart(answer.body, int(size), answer.headers.get("etag", ""))


def _written(answer: ApiResponse) -> WrittenFile:
    info = wire.FileInfo.model_validate_json(answer.body)
    return WrittenFile(info, answer.headers.get("etag", ""), answer.status == 201)
