"""Files of workspaces."""

from dataclasses import dataclass
from urllib.parse import quote

from cfs.api._calls import ApiResponse, Call, Request, parse_model, parse_nothing
from cfs.contract import wire


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
    return Call(request, parse_model(wire.FilePage))


def file(path: str) -> Call[wire.FileInfo]:
    """`GET /v1/files/{path}?view=meta`: what is known of the file at a logical path."""
    return Call(Request("GET", _file(path), {"view": "meta"}), parse_model(wire.FileInfo))


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
    return Call(Request("DELETE", _file(path), headers={} if etag is None else {"If-Match": etag}), parse_nothing)


def _file(path: str) -> str:
    return f"/v1/files{quote(path if path.startswith('/') else f'/{path}')}"


def _part(answer: ApiResponse) -> FilePart:
    size = answer.headers.get("content-range", "").rpartition("/")[2] or len(answer.body)
    return FilePart(answer.body, int(size), answer.headers.get("etag", ""))


def _written(answer: ApiResponse) -> WrittenFile:
    info = wire.FileInfo.model_validate_json(answer.body)
    return WrittenFile(info, answer.headers.get("etag", ""), answer.status == 201)
