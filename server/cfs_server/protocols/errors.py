"""The errors of all protocols: one table of the paths that their clients use, and the shape that each expects (H4, H5).

Every shape is a problem document with the members of the protocol added, so that our own clients can read it, too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cfs.errors import CfsError, ContextTooLong, TooMany, Unauthorized, UpstreamBusy, UpstreamRefused, to_problem

Describe = Callable[[CfsError, str], dict[str, Any]]
"""Describes an error at a path. The member `status` is the status of the response."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """What other parts of the server know of a protocol's paths.

    `changes`: a request without `X-CFS-Session` can change something, too, so that its idempotency key counts.
    `request_id` is the header in which clients look for the id of a request, besides `X-Request-Id`.
    """

    describe: Describe
    changes: bool = False
    request_id: str | None = None


_KINDS = {401: "authentication_error", 403: "permission_error", 404: "invalid_request_error", 429: "rate_limit_error"}
_CODES: dict[type[CfsError], str] = {
    ContextTooLong: "context_length_exceeded",
    TooMany: "rate_limit_exceeded",
    UpstreamBusy: "rate_limit_exceeded",
    Unauthorized: "invalid_api_key",
}
_CODES_OF_UPSTREAMS = {
    401: "invalid_api_key",
    402: "insufficient_quota",
    404: "model_not_found",
    429: "insufficient_quota",
}


def status_of(error: CfsError) -> int:
    """Return the status for the clients of other protocols. These expect 400 in place of our own 422."""
    return 400 if error.status == 422 and not isinstance(error, UpstreamRefused) else error.status


def code_of(error: CfsError) -> str:
    """Return the code of an error in OpenAI's protocol; clients look at it to decide what to do."""
    if isinstance(error, UpstreamRefused):
        code = error.extra.get("upstream_code") or _CODES_OF_UPSTREAMS.get(error.status)
        return str(code or "invalid_request_error")
    return _CODES.get(type(error)) or error.slug.replace("-", "_")


def openai_problem(error: CfsError, path: str = "") -> dict[str, Any]:  # noqa: ARG001 - the same at all paths
    """Describe an error to a client of the OpenAI API."""
    problem, status = to_problem(error), status_of(error)
    places = error.extra.get("errors")
    message = error.detail
    if isinstance(error, ContextTooLong):  # the words by which LangChain and litellm know the error
        message = f"Input tokens exceed the configured limit: {message}"
    return problem | {
        "status": status,
        "error": {
            "message": message,
            "type": _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error"),
            "param": places[0]["at"] if places else None,
            "code": code_of(error),
        },
    }


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_TOKENS = re.compile(r"\d[\d,]{2,}")
_MAXIMUM = re.compile(r"(?:maximum|limit|context|>)\D{0,40}(\d[\d,]{2,})", re.IGNORECASE)


def anthropic_problem(error: CfsError, path: str = "") -> dict[str, Any]:  # noqa: ARG001 - the same at all paths
    """Describe an error to a client of Anthropic's API."""
    status = status_of(error)
    kind = _ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = {"details": error.extra["details"]} if "details" in error.extra else {}
    message = _too_long(error.detail) if isinstance(error, ContextTooLong) else error.detail
    return to_problem(error) | {
        "type": "error",
        "status": status,
        "error": {"type": kind, "message": message, **details},
    }


def _too_long(detail: str) -> str:
    """Say that a prompt is too long in the words after which Claude Code and others compact the conversation.

    These read "prompt is too long" and two numbers, which the error names if they are known.
    """
    largest = max(map(_number, _TOKENS.findall(detail)), default=0)
    limits = [limit for limit in map(_number, _MAXIMUM.findall(detail)) if limit < largest]
    if not limits:
        return f"prompt is too long: {detail}"
    return f"prompt is too long: {largest} tokens > {limits[0]} maximum ({detail})"


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def ollama_problem(error: CfsError, path: str = "") -> dict[str, Any]:  # noqa: ARG001
    """Describe an error to a client of Ollama: its `error` is a sentence."""
    return to_problem(error) | {"status": status_of(error), "error": error.detail}


_OPENAI = Protocol(openai_problem)
_STORED = Protocol(openai_problem, changes=True)
_ANTHROPIC = Protocol(anthropic_problem, request_id="request-id")
_OLLAMA = Protocol(ollama_problem)

TABLE: dict[str, Protocol] = {
    "/v1/chat/completions": _OPENAI,
    "/v1/completions": _OPENAI,
    "/v1/embeddings": _OPENAI,
    "/v1/responses": _STORED,
    "/v1/conversations": _STORED,
    "/v1/models": _OPENAI,
    "/v1/tokens": _OPENAI,
    "/v1/messages": _ANTHROPIC,
    "/api": _OLLAMA,
}
"""Each protocol by its paths. A row stands for the paths below it, too; the longest one counts."""


def protocol_at(path: str) -> Protocol | None:
    """Return the protocol of a path; None for our own."""
    matches = [row for row in TABLE if path == row or path.startswith(row + "/")]
    return TABLE[max(matches, key=len)] if matches else None


def problem_at(path: str, error: CfsError) -> dict[str, Any]:
    """Describe an error in the shape that the clients of a path expect."""
    protocol = protocol_at(path)
    return to_problem(error) if protocol is None else protocol.describe(error, path)
