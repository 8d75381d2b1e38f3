"""Files by REST as the test kit for file systems wants them: handles that speak HTTP, one token each."""

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
from anyio.from_thread import BlockingPortal

from cfs.errors import (
    CfsError,
    Conflict,
    Forbidden,
    InvalidParameters,
    InvalidRequest,
    NotFound,
    NotGranted,
    from_problem,
)
from cfs_filesystem import (
    AccessDeniedError,
    ConflictError,
    EntryMeta,
    FileSystemError,
    Grant,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    Path,
)
from cfs_server.access.tokens import Token, TokenGrant, digest
from tests.server.support import ServerHarness

_KINDS: dict[type[CfsError], type[FileSystemError]] = {
    NotGranted: AccessDeniedError,
    Forbidden: AccessDeniedError,
    InvalidParameters: InvalidArgumentError,
    InvalidRequest: InvalidPathError,  # or its subclass InvalidPath: some strings are not even a path of a URL
    NotFound: NotFoundError,
    Conflict: ConflictError,  # or its subclass PreconditionFailed, the answer to a create-only PUT where something is
}
_PAGE = 3
"""Small, so that every list of some length is read in pages."""

_Metas = list[EntryMeta]
_Texts = list[str]


class RemoteFileSystem:
    """The files of a server that runs in another thread; each handle is a new token with just its grants."""

    def __init__(self, client: httpx.Client, server: ServerHarness, portal: BlockingPortal) -> None:
        self._client = client
        self._server = server
        self._portal = portal
        self._tokens: dict[str, Token] = {}

    def create_handle(self, grants: Iterable[Grant]) -> "RemoteHandle":
        """Make the running server know a token with these grants; return what calls with it."""
        secret = secrets.token_urlsafe()
        given = tuple(TokenGrant(prefix=grant["prefix"], ops=frozenset(grant["ops"])) for grant in grants)
        self._tokens[f"t{len(self._tokens)}"] = Token(hash=digest(secret), grants=given)
        self._portal.call(self._server.parts.principals.use, self._tokens)
        return RemoteHandle(self._client, secret)


class RemoteHandle:
    """The operations of an `FsHandle`, each as one request, or one a page."""

    def __init__(self, client: httpx.Client, secret: str) -> None:
        self._client = client
        self._credentials = {"Authorization": f"Bearer {secret}"}

    def list(self, prefix: Path | None = None) -> _Metas:
        """Read the list to its end."""
        if prefix == "":
            raise InvalidPathError("an empty prefix cannot be told from none in a query")
        found: _Metas = []
        where = {} if prefix is None else {"prefix": prefix}
        after: str | None = ""
        while after is not None:
            page = self._ask("GET", "/v1/files", params={**where, "after": after, "limit": _PAGE}).json()
            assert len(page["files"]) <= _PAGE
            found += map(_meta, page["files"])
            after = page["next"]
        return found

    def file(self, path: Path) -> EntryMeta:
        """Ask what is known."""
        return _meta(self._get(path, view="meta").json())

    def read_binary(self, path: Path) -> bytes:
        """Get the bytes."""
        return self._get(path).content

    def read_file(self, path: Path, index: int | None = None, line: int | None = None) -> str:
        """Get lines of the text."""
        return self._get(path, view="text", index=index, line=line).content.decode()

    def read_re(self, path: Path, pattern: str, overlap: int | None = None) -> _Texts:
        """Get what matches."""
        matches: _Texts = self._get(path, view="matches", pattern=pattern, overlap=overlap).json()["matches"]
        return matches

    def write(self, path: Path, data: str | bytes, *, overwrite: bool = True) -> EntryMeta:
        """Put the bytes; only where nothing is unless `overwrite`."""
        headers = {} if overwrite else {"If-None-Match": "*"}
        return _meta(self._ask("PUT", _url(path), content=_bytes(data), headers=headers).json())

    def delete(self, path: Path) -> None:
        """Delete it."""
        self._ask("DELETE", _url(path))

    def _get(self, path: Path, **query: str | int | None) -> httpx.Response:
        asked = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", _url(path), params=asked)

    def _ask(self, method: str, url: str, headers: dict[str, str] | None = None, **rest: Any) -> httpx.Response:
        """Send a request; return an answer that is no error, or raise what the error stands for."""
        answer = self._client.request(method, url, headers=self._credentials | (headers or {}), **rest)
        if answer.is_success:
            return answer
        error = from_problem(answer.status_code, answer.json())
        raise next(kind for ours, kind in _KINDS.items() if isinstance(error, ours))(error.detail)


def _url(path: Path) -> str:
    """Write a path, or what should have been one, into a URL that no library tidies up."""
    parts = path.removeprefix("/").split("/")
    return "/v1/files/" + "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)


def _bytes(data: str | bytes) -> bytes:
    """Encode what is to be sent; what is no data has no bytes that could travel."""
    try:
        return data if isinstance(data, bytes) else data.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidArgumentError("data is text or bytes") from None


def _meta(info: dict[str, object]) -> EntryMeta:
    meta: EntryMeta = {"path": str(info["path"]), "size": 0, "updated_at": datetime.fromtimestamp(0, UTC)}
    meta.update({name: value for name, value in info.items() if value is not None})  # type: ignore[typeddict-item]
    meta["updated_at"] = datetime.fromtimestamp(float(str(info["updated_at"])), UTC)
    return meta
