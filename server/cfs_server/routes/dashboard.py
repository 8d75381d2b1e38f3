"""The dashboard, a page that uses only the API of this server: its files, and HTML of what it shows (D)."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from starlette.requests import Request
from starlette.routing import Route

from cfs import wire
from cfs.errors import InvalidParameters, NotFound, TooLarge, Unavailable, UnsupportedMedia
from cfs_server.domain.words import Criteria, SearchQuery
from cfs_server.http.bodies import json_body
from cfs_server.http.caller import AppContext, Me
from cfs_server.http.etags import unchanged
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json

router = APIRouter(prefix="/v1", tags=["dashboard"])

PREFIX = "/dashboard/"
PAGE = "index.html"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "webmanifest": "application/manifest+json",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "manifest-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "cfs-markup",
}
"""The page loads and runs only files of this server. Only the HTML of `/v1/render` becomes markup, by one policy."""

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
    assets: dict[str, Asset] = {}
    for file in resources.files("cfs_server.dashboard").iterdir():
        media = _TYPES.get(file.name.rpartition(".")[2])
        if media is not None:
            content = file.read_bytes()
            assets[file.name] = Asset(content, media, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return assets


ASSETS = _assets()
"""All files of the dashboard by name. They are read once, so that the loop never waits for the disk."""


async def asset(request: Request) -> Response:
    """Return a file of the dashboard."""
    name = request.path_params["name"]
    entry = ASSETS.get(name)
    if entry is None:
        raise NotFound(f"the dashboard has no file {name!r}")
    return entry.answer(request.headers.get("if-none-match"))


ROUTE = Route(PREFIX + "{name}", asset, methods=["GET"])
"""Not part of the API: these paths are for browsers."""


@router.post(
    "/render",
    responses={
        200: answer("The HTML of each text", json=wire.Rendered),
        **problems(InvalidParameters, TooLarge, UnsupportedMedia),
    },
    openapi_extra=body(json=wire.RenderRequest),
)
async def render(
    parts: AppContext, me: Me, payload: Annotated[wire.RenderRequest, Depends(json_body(wire.RenderRequest))]
) -> Response:
    """Render markdown and code as HTML that is safe to insert into a page."""
    texts = [(item.text, item.language) for item in payload.items]
    rendered = await parts.renderer.render(me.principal.name, texts)
    return as_json(wire.Rendered(items=tuple(wire.RenderedItem(html=html) for html in rendered)))


@router.get(
    "/search",
    responses={
        200: answer("The best matches", json=wire.SearchResults),
        **problems(InvalidParameters, Unavailable),
    },
)
async def search(
    me: Me,
    q: Annotated[
        str,
        Query(
            description='Words that must all occur, "phrases" and beginnings (`word*`). Case does not matter.',
            min_length=1,
            max_length=200,
        ),
    ],
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    prefix: Annotated[str, Query(description="Only sessions whose id begins like this.")] = "",
    within: Annotated[str, Query(alias="in", description="Only this session and those below it.")] = "",
    role: Annotated[wire.Role | None, Query(description="Only messages of this role.")] = None,
    since: Annotated[float, Query(description="Only what is not older: seconds since 1970.", ge=0)] = 0.0,
) -> Response:
    """Search in the messages, titles and workspace files of all sessions that the caller may read."""
    criteria = Criteria(SearchQuery.parse(q), role, since)
    async with me.principal.searches:
        matches = await me.sessions.search(criteria, prefix, within, limit)
        files = [] if role else await me.search_files(criteria, prefix, within, limit + 1)
    results = [
        wire.SearchResult(
            kind="title" if match.message is None else "message",
            session=match.session.id,
            title=match.session.title,
            index=match.index,
            role=None if match.message is None else match.message.role,
            time=match.time,
            text=match.excerpt.text,
            ranges=match.excerpt.ranges,
            score=match.score,
        )
        for match in matches.matches
    ]
    results += [
        wire.SearchResult(
            kind="file",
            session=file.workspace,
            title=None,
            index=file.line,
            role=None,
            time=file.time,
            text=file.excerpt.text,
            ranges=file.excerpt.ranges,
            score=file.score,
            path=file.path,
        )
        for file in files
    ]
    if files:
        results.sort(key=lambda result: (result.score, result.time), reverse=True)
    more = matches.more or len(results) > limit
    content = wire.SearchResults(results=tuple(results[:limit]), truncated=more, indexing=matches.indexing)
    return as_json(content, headers={"Cache-Control": "no-store"})
