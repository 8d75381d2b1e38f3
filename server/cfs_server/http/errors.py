"""Converts every error to a problem document (H5)."""

import math
from collections.abc import Iterable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from cfs.errors import (
    CfsError,
    InvalidParameters,
    MethodNotAllowed,
    NotFound,
    ServerError,
    Unauthorized,
    Unavailable,
    from_problem,
)
from cfs_filesystem.versions import VersionsUnavailableError
from cfs_server.protocols.errors import problem_at

MEDIA_TYPE = "application/problem+json"


class JSONLine(JSONResponse):
    """A JSON response that ends with a newline, so that a shell's prompt begins on a line of its own."""

    def render(self, content: object) -> bytes:
        """Return the body."""
        return super().render(content) + b"\n"


CHALLENGE = 'Bearer realm="cfs", Basic realm="cfs", charset="UTF-8"'
"""The `WWW-Authenticate` header of a 401 response (RFC 6750, RFC 7617)."""


def problem_response(error: CfsError, path: str = "", **headers: str) -> Response:
    """Return the problem document of an error. `Retry-After` is rounded up to whole seconds.

    `x-should-retry` is what the official clients of OpenAI and Anthropic look at before they repeat a request.
    """
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = CHALLENGE
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    if not error.should_retry:
        headers["x-should-retry"] = "false"
    problem = problem_at(path, error)
    return JSONLine(problem, problem["status"], headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Register handlers that return a problem document for every error of CFS, of FastAPI and of the router."""
    app.add_exception_handler(CfsError, _ours)
    app.add_exception_handler(VersionsUnavailableError, _no_versions)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _from_framework)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, CfsError)  # noqa: S101 - registered for this class only
    return problem_response(error, request.scope["path"])


async def _no_versions(request: Request, error: Exception) -> Response:
    return problem_response(Unavailable(f"versions of files cannot be read: {error}"), request.scope["path"])


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return problem_response(invalid(error.errors()), request.scope["path"])


def invalid(problems: Iterable[dict[str, object]]) -> InvalidParameters:
    """Describe pydantic's validation errors: one sentence, and their places in `errors`."""
    errors = [{"at": _place(problem["loc"]), "message": str(problem["msg"])} for problem in problems][:20]
    summary = "; ".join(f"{error['at']}: {error['message'].lower()}" for error in errors[:3])
    return InvalidParameters(summary or "the request is not valid", errors=errors)


def _place(location: object) -> str:
    parts = [str(part) for part in location] if isinstance(location, tuple | list) else [str(location)]
    return ".".join(parts) or "body"


async def _from_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    path = request.url.path
    if error.status_code == 404:
        return problem_response(NotFound(f"there is nothing at {path}; see /openapi.json for the routes"), path)
    if error.status_code == 405:
        allow = ", ".join(allowed_methods(request))
        problem = MethodNotAllowed(f"{request.method} is not possible at {path}; use {allow}")
        return problem_response(problem, path, Allow=allow)
    if error.status_code >= 500:
        return problem_response(ServerError(str(error.detail)), path)
    return problem_response(from_problem(error.status_code, {"detail": str(error.detail)}), path)


def allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes at this path. The router itself knows only those of the first match."""
    methods: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        pattern = getattr(route.original_route, "path_regex", None)
        if pattern is not None and pattern.match(request.scope["path"]):
            methods |= route.methods or set()
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)
