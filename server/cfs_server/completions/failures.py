"""Errors as clients of the OpenAI API read them: a problem document that says it in their words, too (H4, H5)."""

from typing import Any

from cfs.errors import CfsError, ContextTooLong, NotFound, TooMany, Unauthorized, to_problem

PATHS = ("/v1/chat/completions", "/v1/models", "/v1/tokens")
"""Where such clients ask."""

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: dict[type[CfsError], str] = {
    ContextTooLong: "context_length_exceeded",
    TooMany: "rate_limit_exceeded",
    Unauthorized: "invalid_api_key",
}


def is_asked_here(path: str) -> bool:
    """Whether an error at this path goes to such a client."""
    return any(path == each or path.startswith(each + "/") for each in PATHS)


def problem_for_clients(error: CfsError, path: str = PATHS[0]) -> dict[str, Any]:
    """Describe an error; where we say 422 they expect 400."""
    problem = to_problem(error)
    status = 400 if error.status == 422 else error.status
    code = _CODES.get(type(error)) or error.slug.replace("-", "_")
    if isinstance(error, NotFound) and path.startswith("/v1/models"):
        code = "model_not_found"
    places = error.extra.get("errors")
    return problem | {
        "status": status,
        "error": {
            "message": error.detail,
            "type": _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error"),
            "param": places[0]["at"] if places else None,
            "code": code,
        },
    }
