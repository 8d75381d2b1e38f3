"""Completions, the models that make them, and counts of tokens."""

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cfs.api._calls import (
    COMPLETION_SECONDS,
    COMPLETIONS,
    EVENTS,
    JSON,
    SESSION,
    Call,
    ChunkStream,
    Request,
    json_request,
    parse_model,
)
from cfs.contract import wire
from cfs.contract.ids import check_id

if TYPE_CHECKING:  # most programs do not need these models, which take 0.1 s to import
    from cfs import completions


def complete(
    request: "completions.ChatRequest", session: str | None = None, wait_seconds: float = COMPLETION_SECONDS
) -> "Call[completions.ChatCompletion]":
    """`POST /v1/chat/completions`: the whole completion, recorded in a session if one is named (H4)."""
    from cfs.completions import ChatCompletion

    return Call(_completion(request, session, wait_seconds, {"stream": False}), parse_model(ChatCompletion))


def complete_in_chunks(request: "completions.ChatRequest", session: str | None = None) -> ChunkStream:
    """`POST /v1/chat/completions`: the completion as it is made; its last chunk says what it cost (H4)."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return ChunkStream(_completion(request, session, 0.0, options))


def models() -> "Call[completions.ModelList]":
    """`GET /v1/models`."""
    from cfs.completions import ModelList

    return Call(Request("GET", "/v1/models"), parse_model(ModelList))


def connections() -> Call[wire.ConnectionList]:
    """`GET /v1/connections`: the models of the server's file, which it reads again if it has changed."""
    return Call(Request("GET", "/v1/connections"), parse_model(wire.ConnectionList))


def count_tokens(request: "completions.TokensRequest") -> "Call[completions.TokenCounts]":
    """`POST /v1/tokens`: the tokens of texts, and of a conversation's prompt."""
    from cfs.completions import TokenCounts

    return Call(json_request("POST", "/v1/tokens", request), parse_model(TokenCounts))


def _completion(
    request: "completions.ChatRequest", session: str | None, wait_seconds: float, how: dict[str, Any]
) -> Request:
    headers = {"Content-Type": JSON, "Accept": EVENTS if how["stream"] else JSON}
    if session is not None:
        headers[SESSION] = quote(check_id(session))
    body = json.dumps(request.model_dump(mode="json", exclude_none=True) | how, ensure_ascii=False).encode()
    return Request("POST", COMPLETIONS, headers=headers, body=body, wait_seconds=wait_seconds)
