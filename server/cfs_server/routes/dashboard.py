"""The files of the dashboard, a page that uses only the API of this server (D)."""

import hashlib
from dataclasses import dataclass
from importlib import resources

from fastapi import Response
from starlette.requests import Request
from starlette.routing import Route

from cfs.errors import NotFound
from cfs_server.routes.http import unchanged

PREFIX = "/dashboard/"
PAGE = "index.html"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
"""Nothing but our own files runs or is fetched, and no text becomes markup: what sessions say stays text."""

_HEADERS = {
    "Cache-Control": "no-cache",  # revalidated on each request (304), so that a new version is visible at once
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the dashboard."""

    content: bytes
    media_type: str
    etag: str

    def answer(self, if_none_match: str | None) -> Response:
        """Return the file, or 304 if the browser has this version."""
        headers = _HEADERS | {"ETag": self.etag, "Vary": "Accept"}
        if unchanged(if_none_match, self.etag):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def _assets() -> dict[str, Asset]:
    found: dict[str, Asset] = {}
    for file in resources.files("cfs_server.dashboard").iterdir():
        media = _TYPES.get(file.name.rpartition(".")[2])
        if media is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, media, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found


ASSETS = _assets()
"""All files of the dashboard by name, some dozens of kilobytes; read once, for the loop must not wait for a disk."""


async def asset(request: Request) -> Response:
    """Return a file of the dashboard."""
    name = request.path_params["name"]
    found = ASSETS.get(name)
    if found is None:
        raise NotFound(f"the dashboard has no file {name!r}")
    return found.answer(request.headers.get("if-none-match"))


ROUTE = Route(PREFIX + "{name}", asset, methods=["GET"])
"""No part of the API: what is below it is for browsers."""
